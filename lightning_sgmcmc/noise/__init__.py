"""The only owner of random generators: one stream of noise a chain and device."""

from lightning_sgmcmc.noise.stream import Generator, Increments, NoiseStream, check_generator

__all__ = ["Generator", "Increments", "NoiseStream", "check_generator"]
