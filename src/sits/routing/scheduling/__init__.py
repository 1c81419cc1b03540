"""Filters and scores: who may answer a request, and what is for and against each."""
