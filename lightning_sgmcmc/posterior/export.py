"""Draws as ArviZ data, for its plots, its model comparison and its file formats."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from lightning_sgmcmc.diagnostics.mixing import Array
from lightning_sgmcmc.posterior.draws import DrawStore, open_stores
from lightning_sgmcmc.posterior.posterior import Posterior


def to_arviz(
    run: str | Path | Posterior,
    *,
    log_likelihood: ArrayLike | None = None,
    predictions: ArrayLike | None = None,
    draws: int | None = None,
) -> Any:
    """Return a run's draws as an ``xarray.DataTree`` in ArviZ's convention.

    ``posterior`` holds every sampled tensor under its name, [chain, draw, ...], in float64;
    ``sample_stats`` the draws' ``weight`` in averages, which ArviZ's own functions ignore, and
    their ``step``.

    Args:
        run: A run's folder, or an opened posterior.
        log_likelihood: Of each observation under each draw, [C, D, ...], for ``az.loo``; see
            :func:`probe`.
        predictions: Of each draw, [C, D, ...], kept as ``posterior_predictive``.
        draws: How many draws to take of each chain, from the first on; needed where chains have
            different numbers.

    Raises:
        ImportError: If arviz-base is not installed.
        FileNotFoundError: If the folder holds no draws.
        ValueError: If chains have different numbers of draws, or an array does not fit them.
    """
    try:
        arviz_base = importlib.import_module("arviz_base")
    except ImportError as error:
        raise ImportError(
            'export needs arviz-base: pip install "lightning-sgmcmc[arviz]"'
        ) from error
    stores = run.stores if isinstance(run, Posterior) else open_stores(run)
    kept = _kept(stores, draws)
    groups: dict[str, dict[str, Any]] = {"posterior": {}, "sample_stats": {}}
    chains: list[list[dict[str, Any]]] = [
        [{k: t.double().numpy() for k, t in s.load(d).items()} for d in s.draws[:kept]]
        for s in stores
    ]
    for name in chains[0][0]:
        groups["posterior"][name] = np.array([[draw[name] for draw in c] for c in chains])
    for field in ("weight", "step"):
        values = [[getattr(d, field) for d in s.draws[:kept]] for s in stores]
        groups["sample_stats"][field] = np.array(values)
    extra = {"log_likelihood": log_likelihood, "posterior_predictive": predictions}
    for group, value in extra.items():
        if value is None:
            continue
        array = np.asarray(value, dtype=np.float64)
        if array.shape[:2] != (len(stores), kept):
            raise ValueError(
                f"{group} is [chains, draws, ...] = [{len(stores)}, {kept}, ...], got shape "
                f"{array.shape}"
            )
        groups[group] = {"y": array}
    return arviz_base.from_dict(groups)


@torch.no_grad()
def probe(posterior: Posterior, batch: Any) -> tuple[Array, Array]:
    """Return every draw's predictions and log-likelihood on a batch.

    Args:
        posterior: A run's draws.
        batch: What the module's ``predictive`` and ``nll`` take, B examples.

    Returns:
        Predictions [C, D, B, ...] for :func:`~lightning_sgmcmc.diagnostics.summarise` and
        :func:`to_arviz`, and log-likelihoods [C, D, B].

    Raises:
        ValueError: If chains have different numbers of draws.
    """
    kept = _kept(posterior.stores, None)
    outputs, log_likelihoods = [], []
    for module in posterior:
        outputs.append(module.predictive(batch).double().cpu().numpy())
        log_likelihoods.append(-module.nll(batch).double().cpu().numpy())
    lead = (len(posterior.stores), kept)
    predictions, values = np.stack(outputs), np.stack(log_likelihoods)
    return (
        predictions.reshape(*lead, *predictions.shape[1:]),
        values.reshape(*lead, *values.shape[1:]),
    )


def _kept(stores: list[DrawStore], draws: int | None) -> int:
    numbers = [len(store.draws) for store in stores]
    if draws is None and len(set(numbers)) > 1:
        raise ValueError(
            f"the chains have {numbers} draws: give draws={min(numbers)} for the first of each"
        )
    if draws is not None and not 1 <= draws <= min(numbers):
        raise ValueError(f"draws must lie between 1 and {min(numbers)}, got {draws}")
    return numbers[0] if draws is None else draws
