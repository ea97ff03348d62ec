"""Comparison with bde on its own tables."""
