"""Comparisons with neural operators."""
