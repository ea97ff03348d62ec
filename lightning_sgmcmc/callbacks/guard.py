"""Stop a chain that diverges, and replicas that drift apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_sgmcmc.callbacks.run import task_of
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.samplers.watch import Watch

# Steps between comparisons of the weights across processes.
_REPLICAS_EVERY = 100


class ChainDivergedError(RuntimeError):
    """The loss or a weight of a chain is no longer finite, or has left all bounds."""


class ReplicasDifferError(RuntimeError):
    """Replicas of one chain no longer hold the same weights."""


@dataclass(frozen=True)
class _Step:
    """Where a chain was when it had its loss."""

    number: int
    lr: float
    chains: range


class ChainGuard(L.Callback):
    """Check the loss of every step, and the replicas of a chain now and then.

    A chain has diverged when its minibatch loss is not finite, or exceeds the first one, L0, by
    more than ``bound * max(1, |L0|, |lowest loss so far|)``. The lowest loss tells how sharp the
    likelihood has become: where its noise scale is small, one odd minibatch costs as much as the
    untrained network did. Draws that were kept stay.

    On the CPU a step is checked where it ends. On a GPU, where a look at every step would make the
    device wait for the host, the losses of 100 steps are checked together, and before a draw or a
    checkpoint is kept (:func:`look_back`): the message names the step all the same.

    Args:
        bound: Largest rise of the mean loss, relative to the first.
    """

    def __init__(self, bound: float = 1e3) -> None:
        self.bound = bound
        self._first: float | None = None
        self._lowest = math.inf
        self._watch = Watch(self._judge)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Check that the chain has its data.

        Raises:
            RuntimeError: If the task's ``on_train_start`` hides that of :class:`SGMCMCModule`.
        """
        if task_of(pl_module).chain.target is None:
            raise _hidden(pl_module, "on_train_start()")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Check the step that was just taken.

        Raises:
            ChainDivergedError: If the chain has diverged.
            ReplicasDifferError: If replicas of the chain differ.
            RuntimeError: If the task's ``training_step`` hides that of :class:`SGMCMCModule`.
        """
        chain = task_of(pl_module).chain
        if chain.steps == 0:
            raise _hidden(pl_module, "training_step(batch, batch_idx)")
        self._watch.see(chain.last_loss.reshape(-1), _Step(chain.steps, chain.lr, chain.numbers))
        if chain.processes.size > 1 and chain.steps % _REPLICAS_EVERY == 0:
            self._compare_replicas(chain)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check the last steps."""
        self.look_back()

    def look_back(self) -> None:
        """Check the losses that were not looked at yet.

        Raises:
            ChainDivergedError: If the chain has diverged.
        """
        self._watch.look()

    def _judge(self, losses: Tensor, at: _Step) -> None:
        worst = int(losses.nan_to_num(nan=math.inf).argmax())
        loss, lowest = float(losses[worst]), float(losses.min())
        if self._first is None and math.isfinite(loss):
            self._first = loss
        first = self._first if self._first is not None else 0.0
        self._lowest = min(self._lowest, lowest) if math.isfinite(lowest) else self._lowest
        scale = max(1.0, abs(first), abs(self._lowest) if math.isfinite(self._lowest) else 0.0)
        if not math.isfinite(loss) or loss > first + self.bound * scale:
            which = f"chain {at.chains[worst]}" if len(losses) > 1 else "the chain"
            raise ChainDivergedError(
                f"{which} diverged at step {at.number} (mean NLL {loss:.3g}) with step "
                f"size {at.lr:.3g}: lower lr (or use lr: auto with a smaller "
                "step_fraction). Draws kept before are whole; the last checkpoint is in "
                "checkpoints/"
            )

    def _compare_replicas(self, chain: Chain) -> None:
        sums = [
            torch.hash_tensor(p.detach()) if hasattr(torch, "hash_tensor") else p.detach().sum()
            for p in chain.sampler.params
        ]
        gathered = chain.processes.gather(torch.stack([s.to(torch.float64) for s in sums]))
        if not bool((gathered == gathered[0]).all()):
            raise ReplicasDifferError(
                f"the replicas of the chain hold different weights after step "
                f"{chain.steps}: something drew from a global generator or skipped a "
                "gradient reduction; draws since the last comparison are not to be trusted"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the first and the lowest loss.

        Raises:
            ChainDivergedError: If the chain has diverged.
        """
        self.look_back()
        return {"first": self._first, "lowest": self._lowest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the first and the lowest loss."""
        self._first, self._lowest = state_dict["first"], state_dict["lowest"]
        self._watch.forget()


def _hidden(module: L.LightningModule, call: str) -> RuntimeError:
    name = call.partition("(")[0]
    return RuntimeError(
        f"{type(module).__name__}.{name} takes the place of SGMCMCModule's, and the chain took no "
        f"step: call super().{call} in it"
    )


def look_back(trainer: L.Trainer, chain: Chain) -> None:
    """Check the steps that a run has taken since the host last looked at them.

    Whatever keeps something of a chain's state calls it first.

    Raises:
        ChainDivergedError: If a loss has left all bounds; names the step.
        NonFiniteGradientError: If a gradient was not finite; names the step.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ChainGuard):
            callback.look_back()
    chain.sampler.look_back()
