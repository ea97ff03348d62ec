"""Experiments of Wang, Deng, Lin 2020."""
