"""Distil a chain into one network while it runs."""

from __future__ import annotations

import json
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from lightning_sgmcmc.callbacks.report.results import plain
from lightning_sgmcmc.callbacks.run import record, run_folder, task_of
from lightning_sgmcmc.chain import BatchStream, Chain, Task
from lightning_sgmcmc.chain.undisturbed import undisturbed
from lightning_sgmcmc.common.files import save_tensors, write_beside
from lightning_sgmcmc.metrics import Categorical, Prediction, label_nll
from lightning_sgmcmc.posterior.distill import (
    MakeOptimizer,
    Student,
)
from lightning_sgmcmc.posterior.held_out import MEASURED, evaluating


class Distillation(L.Callback):
    """Teach a student the predictions of the chain's states as they come.

    After burn-in, every so many steps, the current state predicts a minibatch of perturbed
    training inputs and the student takes a step towards its probabilities, their mean over the
    chains if there are several: see :class:`~lightning_sgmcmc.posterior.distill.Student` for the
    objective (Korattikara, Rathod, Murphy, Welling 2015, Algorithm 1). Every state counts alike,
    also where the step size decays. The chain is not touched. A run that continues from a
    checkpoint gives the same student to the bit.

    At the end the run's folder has ``student.safetensors``, the student's own ``state_dict``, and
    ``student.json``, its metrics on the held-out sets. Training data come from a
    :class:`~lightning_sgmcmc.BatchStream` whose first tensor is the inputs.

    Args:
        student: The network that learns; takes the inputs, returns logits [B, C].
        optimizer: Called with the student's parameters, returns the optimizer; None is Adam with
            step size 1e-4.
        every: Steps of the chain between two of the student.
        start: Step of the chain after which the student learns; None is the end of burn-in.
        batch_size: Examples of a step.
        noise_std: Standard deviation of the perturbation, in the inputs' units.
        prior_precision: Of the student's Gaussian prior.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        student: nn.Module,
        optimizer: MakeOptimizer | None = None,
        every: int = 1,
        start: int | None = None,
        batch_size: int = 100,
        noise_std: float = 0.1,
        prior_precision: float = 0.1,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if start is not None and start < 0:
            raise ValueError(f"start must not be negative, got {start}")
        self.every, self.start = every, start
        #: The student, its optimizer and the number of its steps.
        self.student = Student(student, optimizer, batch_size, noise_std, prior_precision)
        self._restored: dict[str, Any] | None = None
        self._checked = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the student where the chain is, and restore what is to be.

        Raises:
            ValueError: If the training data are not in a BatchStream, or the run ends before the
                student's first step.
        """
        chain = task_of(pl_module).chain
        start = chain.draws.burn_in if self.start is None else self.start
        if 0 <= trainer.max_steps <= start:
            raise ValueError(
                f"the student begins after step {start}, and the run ends after {trainer.max_steps}"
            )
        if not isinstance(trainer.train_dataloader, BatchStream):
            raise ValueError(
                "Distillation draws minibatches of its own: train on a BatchStream, got "
                f"{type(trainer.train_dataloader).__name__}"
            )
        self.student.net.to(chain.device)
        self.student.seed = chain.sampler.seed
        if self._restored is not None:
            self.student.load_state_dict(self._restored)
        self._checked = False

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Refuse, before the first step, a student and a teacher that do not fit each other.

        Raises:
            ValueError: If they do not.
        """
        if self._checked:
            return
        self._checked, chain = True, task_of(pl_module).chain
        assert chain.stream is not None
        with undisturbed(chain.task):
            batch = self.student.minibatch(chain.stream.tensors, chain.steps)
            self.student.check(batch, self._probabilities(chain, batch))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Let the student learn from the state that the step just reached, if it is time."""
        chain = task_of(pl_module).chain
        start = chain.draws.burn_in if self.start is None else self.start
        step = chain.steps
        if step <= start or (step - start) % self.every:
            return
        assert chain.stream is not None
        batch = self.student.minibatch(chain.stream.tensors, step)
        loss = self.student.learn(batch, self._teach(chain, batch), chain.stream.num_data)
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and step % every == 0:
            record(trainer, {"student/cross_entropy": float(loss)})

    @torch.no_grad()
    def _teach(self, chain: Chain, batch: Any) -> Tensor:
        """Return the probabilities [B, C] of the chains' states, averaged over all chains."""
        probabilities = self._probabilities(chain, batch)
        if not chain.processes.data_parallel:
            probabilities = chain.processes.reduce(probabilities, "mean")
        return probabilities

    @torch.no_grad()
    def _probabilities(self, chain: Chain, batch: Any) -> Tensor:
        """Return those of this process's chains, [B, C]."""
        with evaluating(chain.task):
            probabilities: Tensor = chain.evaluate("predictive", batch)
        return probabilities if chain.stack is None else probabilities.mean(0)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the student and its metrics."""
        folder = run_folder(trainer)  # which all processes ask for together
        if not self.student.steps or not trainer.is_global_zero:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "student.safetensors"
        sha256 = save_tensors(path, self.student.net.state_dict())
        metrics = plain(self.measure(task_of(pl_module)))
        content = {"steps": self.student.steps, "metrics": metrics, "sha256": sha256}
        write_beside(folder / "student.json", json.dumps(content, indent=1))

    def measure(self, task: Task) -> dict[str, dict[str, float]]:
        """Return the student's metrics on the held-out sets that have integer labels."""
        found = {}
        for name, held_out in task.kept.held_out.items():
            if name not in MEASURED:
                continue
            x, labels = held_out.examples[:2]
            if labels.is_floating_point():
                continue
            p = self.student.probabilities(x)
            nll = label_nll(p, labels)
            prediction = Prediction(Categorical, p, torch.zeros_like(p), None, nll)
            found[name] = task.metrics(prediction, held_out.examples)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the student, its optimizer and the number of its steps."""
        return self.student.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take in a checkpoint's state, used when training starts."""
        self._restored = state_dict
