"""Is this a sample of the posterior?

All functions take NumPy arrays (or what becomes one) with chains and draws in front,
[chains, draws, ...], and compute in float64.
"""

from lightning_sgmcmc.diagnostics.autocorrelation import atuc, autocorrelation_time
from lightning_sgmcmc.diagnostics.errors import RelativeErrors, RunningErrors, relative_errors
from lightning_sgmcmc.diagnostics.mixing import MIN_DRAWS, ess, rhat

__all__ = [
    "MIN_DRAWS",
    "RelativeErrors",
    "RunningErrors",
    "atuc",
    "autocorrelation_time",
    "ess",
    "relative_errors",
    "rhat",
]
