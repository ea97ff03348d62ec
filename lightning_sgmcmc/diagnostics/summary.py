"""What ``results.json`` says about the mixing of chains."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import f as fisher_f

from lightning_sgmcmc.diagnostics.mixing import Array, as_traces, columns, ess, rhat, without_middle
from lightning_sgmcmc.diagnostics.weighted import effective_draws

#: R-hat above which chains count as not mixed, if draws are many (Vehtari et al. 2021 say 1.01
#: for a well-run chain).
RHAT = 1.05


def summarise(
    weights: ArrayLike | None = None,
    predictions: ArrayLike | None = None,
    weights_in_averages: ArrayLike | None = None,
    limit: int = 1000,
) -> dict[str, Any]:
    """Return ESS and R-hat of weights and of predictions as plain values for JSON.

    Predictions on a fixed probe set are what mixing means for a network: permuting hidden units
    changes weights and leaves the function as it is.

    Args:
        weights: Draws [C, D, ...], of all weights or of some.
        predictions: The same draws' predictions on a fixed probe set, [C, D, ...].
        weights_in_averages: Of the draws, [D] or [C, D], where they count unequally.
        limit: Quantities of each kind that are examined, spread evenly over all there are.

    Returns:
        ``num_chains``, ``draws_per_chain``, ``effective_draws`` (Kish's number, of the weights in
        averages alone), and for ``weights`` and ``predictions``, where given:
        ``count``, ``examined``, ``constant``, ``not_finite``; ``ess_bulk``, ``ess_tail`` and
        ``rhat``, each with ``min``, ``q05``, ``median``, ``q95``, ``max`` over the quantities that
        vary (None if there are none, or with fewer than 8 draws a chain); ``rhat_limit``, see
        :func:`rhat_limit`, and ``rhat_above``, the fraction above it. ESS and R-hat take all draws
        for equal.

    Raises:
        ValueError: If nothing is given or shapes disagree.
    """
    given = {"weights": weights, "predictions": predictions}
    traces = {name: as_traces(x) for name, x in given.items() if x is not None}
    shapes = {x.shape[:2] for x in traces.values()}
    if len(shapes) != 1:
        raise ValueError(
            f"weights and predictions need the same [chains, draws] in front, got {sorted(shapes)}"
            if shapes
            else "nothing to summarise: give weights, predictions or both"
        )
    chains, draws = shapes.pop()
    result: dict[str, Any] = {"num_chains": chains, "draws_per_chain": draws}
    if weights_in_averages is not None:
        w = np.asarray(weights_in_averages, dtype=np.float64)
        if w.shape not in ((draws,), (chains, draws)):
            raise ValueError(
                f"weights in averages are [{draws}] or [{chains}, {draws}], got shape {w.shape}"
            )
        result["effective_draws"] = effective_draws(np.broadcast_to(w, (chains, draws)))
    for name, x in traces.items():
        result[name] = _space(x, limit)
    return result


def rhat_limit(chains: int, draws: int) -> float:
    """Return the R-hat above which chains count as not mixed: 1.05, or more where draws are few.

    For m half chains of n independent normal draws B / W has the F distribution with m - 1 and
    m (n - 1) degrees of freedom; below its 99.9 % quantile an R-hat is no evidence.
    """
    m, n = 2 * chains, draws // 2
    if n < 2:
        return float("inf")
    chance = np.sqrt(1 + (fisher_f.ppf(0.999, m - 1, m * (n - 1)) - 1) / n)
    return float(max(RHAT, chance))


def _space(traces: Array, limit: int) -> dict[str, Any]:
    flat = traces.reshape(*traces.shape[:2], -1)
    count = flat.shape[2]
    chosen = np.unique(np.linspace(0, count - 1, min(limit, count)).astype(int))
    flat = flat[:, :, chosen]
    varies = columns(without_middle(flat))[1]
    finite = np.isfinite(flat).all((0, 1))
    result: dict[str, Any] = {
        "count": count,
        "examined": len(chosen),
        "constant": int((finite & ~varies).sum()),
        "not_finite": int((~finite).sum()),
    }
    flat = flat[:, :, varies]
    values = rhat(flat)
    result["ess_bulk"] = _spread(ess(flat))
    result["ess_tail"] = _spread(ess(flat, "tail"))
    result["rhat"] = _spread(values)
    limit_of_rhat = rhat_limit(*flat.shape[:2])
    known = values[~np.isnan(values)]
    result["rhat_limit"] = limit_of_rhat if known.size else None
    result["rhat_above"] = float((known > limit_of_rhat).mean()) if known.size else None
    return result


def _spread(values: Array) -> dict[str, float] | None:
    known = values[~np.isnan(values)]
    if not known.size:
        return None
    # Of order statistics, since interpolation between infinities is not a number.
    levels = {"min": 0.0, "q05": 0.05, "median": 0.5, "q95": 0.95, "max": 1.0}
    return {k: float(np.quantile(known, q, method="nearest")) for k, q in levels.items()}
