"""Experiments of Marceau-Caron, Ollivier 2017."""
