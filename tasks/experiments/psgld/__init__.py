"""Experiments of Li, Chen, Carlson, Carin 2016."""
