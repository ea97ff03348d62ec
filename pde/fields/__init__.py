"""Random permeabilities and sources; each sample is a function of (seed, index)."""
