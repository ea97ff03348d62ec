"""Is this a sample of the posterior?

All functions take NumPy arrays (or what becomes one) with chains and draws in front,
[chains, draws, ...], and compute in float64.
"""

from lightning_sgmcmc.diagnostics.autocorrelation import atuc, autocorrelation_time
from lightning_sgmcmc.diagnostics.directions import (
    FEWEST_CHAINS,
    PredictiveTemperature,
    directional_temperatures,
    predictive_temperature,
)
from lightning_sgmcmc.diagnostics.errors import RelativeErrors, RunningErrors, relative_errors
from lightning_sgmcmc.diagnostics.mixing import MIN_DRAWS, ess, nested_rhat, rhat
from lightning_sgmcmc.diagnostics.summary import rhat_limit, summarise
from lightning_sgmcmc.diagnostics.temperature import (
    ConfigurationalTemperature,
    Temperature,
    configurational_temperature,
    gradient_of_potential,
    mean_temperature,
)
from lightning_sgmcmc.diagnostics.verdict import MOMENTUM, Alarm, Remedy, Step, alarms, joint_remedy
from lightning_sgmcmc.diagnostics.weighted import (
    effective_draws,
    weighted_ess,
    weighted_moments,
)

__all__ = [
    "FEWEST_CHAINS",
    "MIN_DRAWS",
    "MOMENTUM",
    "Alarm",
    "ConfigurationalTemperature",
    "PredictiveTemperature",
    "RelativeErrors",
    "Remedy",
    "RunningErrors",
    "Step",
    "Temperature",
    "alarms",
    "atuc",
    "autocorrelation_time",
    "configurational_temperature",
    "directional_temperatures",
    "effective_draws",
    "ess",
    "gradient_of_potential",
    "joint_remedy",
    "mean_temperature",
    "nested_rhat",
    "predictive_temperature",
    "relative_errors",
    "rhat",
    "rhat_limit",
    "summarise",
    "weighted_ess",
    "weighted_moments",
]
