"""From the start of a chain to its first draw: its step size, a frozen C, gradient noise."""

from lightning_sgmcmc.adaptation.burn_in import Adaptation
from lightning_sgmcmc.adaptation.directions import Directions, leading_directions
from lightning_sgmcmc.adaptation.noise import (
    GradientNoise,
    NoiseTemperature,
    gradient_noise,
    minibatch_noise,
)
from lightning_sgmcmc.adaptation.stability import largest_eigenvalue
from lightning_sgmcmc.adaptation.step_size import StepSize

__all__ = [
    "Adaptation",
    "Directions",
    "GradientNoise",
    "NoiseTemperature",
    "StepSize",
    "gradient_noise",
    "largest_eigenvalue",
    "leading_directions",
    "minibatch_noise",
]
