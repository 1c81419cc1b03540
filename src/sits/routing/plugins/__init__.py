"""Fences around the filters and scores of others: whatever they do, a request goes on."""
