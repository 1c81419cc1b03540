"""SITS: one dependable service in front of many models."""

__version__ = "0.1.0"
