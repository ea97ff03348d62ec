"""Distillation: a student becomes its teacher, the mean of several, and resumes to the bit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import SGLD, BatchStream, GaussianPrior
from lightning_sgmcmc.callbacks import ChainCheckpoint, Distillation
from lightning_sgmcmc.metrics import Prediction
from lightning_sgmcmc.posterior import DrawStore, Posterior, distill
from lightning_sgmcmc.posterior.distill import Student, check_probabilities
from tests.toy import Toy, ToyData, trainer

FEATURES, CLASSES = 3, 4


class Classifier(Toy):
    """Logistic regression with several classes."""

    def __init__(self, **chain: Any) -> None:
        sampler = partial(SGLD, lr=1e-2, prior=GaussianPrior(variance=4.0))
        super().__init__(sampler, nn.Linear(FEATURES, CLASSES), **chain)

    def nll(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1], reduction="none")

    def predictive(self, batch: Any) -> Tensor:
        return torch.softmax(self(batch[0]), -1)

    def metrics(self, prediction: Prediction, batch: Any) -> dict[str, float]:
        wrong = prediction.mean.argmax(-1) != batch[1]
        return {"nll": float(prediction.nll.mean()), "error": float(wrong.double().mean())}


def examples(seed: int, size: int = 48) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


class Data(L.LightningDataModule):
    def train_dataloader(self) -> BatchStream:
        return BatchStream(examples(0), 12)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*examples(2, 9)), batch_size=9)

    def test_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*examples(1, 20)), batch_size=7)


def posterior(folder: Path, weights: list[float], scale: float = 1.0) -> Posterior:
    module = Classifier()
    generator = torch.Generator().manual_seed(3)
    store = DrawStore(folder)
    store.save_constants({})
    for step, weight in enumerate(weights):
        draw = {
            name: scale * torch.randn(p.shape, generator=generator)
            for name, p in module.named_parameters()
        }
        store.save(step, draw, weight)
    return Posterior(module, [DrawStore.open(folder)])


def decaying(parameters: Any) -> Adam:
    return Adam(parameters, lr=0.03)


def test_a_student_of_one_draw_becomes_it(tmp_path: Path) -> None:
    draws = posterior(tmp_path, [1.0])
    x, y = examples(5)
    student = nn.Linear(FEATURES, CLASSES)
    options: dict[str, Any] = {"noise_std": 0.5, "prior_precision": 0.0, "batch_size": 48}
    found = distill(draws, student, (x, y), steps=800, optimizer=decaying, **options)
    assert found is student
    new = examples(6, 500)[0]
    with torch.no_grad():
        p = draws.predictive((new, torch.zeros(500, dtype=torch.long))).mean
        log_s = torch.log_softmax(student(new), -1).double()
    assert float((p * (p.log() - log_s)).sum(-1).mean()) < 1e-4


class Table(nn.Module):
    """Free logits for each of some inputs, told apart by their first feature 0, 1, 2, ..."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(size, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[x[:, 0].long()]


def taught(draws: Posterior, lr: float, per_step: int | None) -> tuple[Tensor, Tensor]:
    """Return a table's probabilities [6, C] for six inputs, and each draw's [D, 6, C]."""
    x, y = examples(7, 6)
    x[:, 0] = torch.arange(6.0)
    student = Table(6)
    distill(
        draws,
        student,
        (x, y),
        steps=600,
        optimizer=partial(torch.optim.SGD, lr=lr, momentum=0.5),
        batch_size=6,
        noise_std=0.0,
        prior_precision=0.0,
        draws_per_step=per_step,
    )
    with torch.no_grad():
        rows = torch.stack([module.predictive((x, y)).double() for module in draws])
        return torch.softmax(student.logits, -1).double(), rows


def test_the_optimum_is_the_mean_of_the_draws_probabilities(tmp_path: Path) -> None:
    found, rows = taught(posterior(tmp_path, [1.0, 3.0]), 6.0, None)
    assert (rows[0] - rows[1]).abs().max() > 0.3
    assert (found - (0.25 * rows[0] + 0.75 * rows[1])).abs().max() < 1e-3


def test_draws_taken_at_random_teach_by_their_weights(tmp_path: Path) -> None:
    """Where on the line between the two draws the student ends: at .75, within noise.

    A step's teacher lies at B / 2, B ~ Bin(2, .75), of deviation .31. With curvatures of about
    .15, a step of .4 / 6 and momentum .5 the student averages with a rate of .02 a step, so that
    its own deviation is .31 sqrt(.02 / 2) = .03.
    """
    found, rows = taught(posterior(tmp_path, [1.0, 3.0]), 0.4, 2)
    line = rows[1] - rows[0]
    place = float(((found - rows[0]) * line).sum() / line.square().sum())
    assert abs(place - 0.75) < 0.12


def test_minibatches_are_functions_of_seed_and_step() -> None:
    x, y = examples(0, 1000)
    student = Student(nn.Linear(1, 1), batch_size=500, noise_std=0.3, seed=4)
    moved, labels = student.minibatch((x, y), 17)
    again = student.minibatch((x, y), 17)
    assert torch.equal(moved, again[0])
    assert torch.equal(labels, again[1])
    other = Student(nn.Linear(1, 1), batch_size=500, noise_std=0.3, seed=5)
    for different in (student.minibatch((x, y), 18), other.minibatch((x, y), 17)):
        assert not torch.equal(labels, different[1])
    # Each row is an example of its own, moved by N(0, .3^2); other examples lie farther away.
    plain = Student(nn.Linear(1, 1), batch_size=500, noise_std=0.0, seed=4).minibatch((x, y), 17)
    assert torch.equal(plain[1], labels)
    assert len({tuple(row) for row in plain[0].tolist()}) == 500
    noise = (moved - plain[0]) / 0.3
    assert abs(float(noise.mean())) < 4 / np.sqrt(1500)
    assert abs(float(noise.var()) - 1) < 4 * np.sqrt(2 / 1500)


def test_the_prior_is_counted_once_for_all_data() -> None:
    """With a flat teacher the loss's gradient at w is that of the prior: lambda w / N."""
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))  # equal logits
    student = Student(net, partial(torch.optim.SGD, lr=1.0), prior_precision=5.0)
    student.learn(torch.randn(8, 2), torch.full((8, 2), 0.5), num_data=50)
    expected = 0.9 * torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    torch.testing.assert_close(net.weight.detach(), expected)


def run(folder: Path, steps: int, chains: int, **fit: Any) -> tuple[Distillation, Classifier]:
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(FEATURES, 9), nn.Dropout(0.2), nn.Tanh(), nn.Linear(9, CLASSES))
    callback = Distillation(net, partial(Adam, lr=1e-2), every=3, batch_size=10, noise_std=0.2)
    module = Classifier(burn_in=10, num_chains=chains)
    runner = trainer(folder, steps, [callback, ChainCheckpoint(25)])
    runner.fit(module, datamodule=Data(), **fit)
    return callback, module


@pytest.mark.parametrize("chains", [1, 2])
def test_a_run_resumes_to_the_same_student(tmp_path: Path, chains: int) -> None:
    whole, _ = run(tmp_path / "whole", 40, chains)
    assert whole.student.steps == 10  # after steps 13, 16, ..., 40
    run(tmp_path / "parts", 25, chains)
    torch.manual_seed(99)
    torch.rand(7)
    path = str(tmp_path / "parts/checkpoints/last.ckpt")
    parts, _ = run(tmp_path / "parts", 40, chains, ckpt_path=path, weights_only=True)
    files = [load_file(tmp_path / name / "student.safetensors") for name in ("whole", "parts")]
    for name, value in files[0].items():
        assert torch.equal(value, files[1][name])
        assert torch.equal(value, whole.student.net.state_dict()[name])
    states = [c.student.optimizer.state_dict()["state"] for c in (whole, parts)]
    for i, state in states[0].items():
        assert all(torch.equal(value, states[1][i][key]) for key, value in state.items())


def test_the_student_learns_from_the_state_just_reached(tmp_path: Path, monkeypatch: Any) -> None:
    """What it is taught is the mean of the chains' probabilities."""
    taught = []
    learn = Student.learn

    def watch(self: Student, batch: Any, probabilities: Tensor, num_data: int) -> Tensor:
        states = [module.chain.state(k) for k in range(2)]
        rows = [
            torch.softmax(functional.linear(batch[0], s["net.weight"], s["net.bias"]), -1)
            for s in states
        ]
        taught.append((probabilities, torch.stack(rows).mean(0), num_data))
        return learn(self, batch, probabilities, num_data)

    monkeypatch.setattr(Student, "learn", watch)
    module = Classifier(burn_in=10, num_chains=2)
    callback = Distillation(nn.Linear(FEATURES, CLASSES), every=3, batch_size=10)
    trainer(tmp_path / "a", 22, [callback]).fit(module, datamodule=Data())
    assert len(taught) == 4
    for found, expected, size in taught:
        torch.testing.assert_close(found, expected)
        assert size == 48


def test_the_chain_is_the_same_without_a_student(tmp_path: Path) -> None:
    states = []
    for callbacks in ([], [Distillation(nn.Linear(FEATURES, CLASSES), batch_size=10)]):
        torch.manual_seed(2)
        module = Classifier(burn_in=5)
        folder = tmp_path / str(len(callbacks))
        trainer(folder, 20, callbacks).fit(module, datamodule=Data())
        states.append(module.chain.state(0))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_students_metrics_are_of_its_own_probabilities(tmp_path: Path) -> None:
    run(tmp_path, 30, 1)
    net = nn.Sequential(nn.Linear(FEATURES, 9), nn.Dropout(0.2), nn.Tanh(), nn.Linear(9, CLASSES))
    net.load_state_dict(load_file(tmp_path / "student.safetensors"))
    net.eval()
    x, y = examples(1, 20)
    with torch.no_grad():
        logits = net(x)
    found = json.loads((tmp_path / "student.json").read_text())
    assert found["steps"] == 6
    assert found["metrics"]["test"]["error"] == pytest.approx((logits.argmax(-1) != y).sum() / 20)
    expected = float(functional.cross_entropy(logits, y))
    assert found["metrics"]["test"]["nll"] == pytest.approx(expected, rel=1e-5)


def test_a_regression_cannot_be_distilled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"predictive returns probabilities \[B, C\]"):
        trainer(tmp_path, 5, [Distillation(nn.Linear(3, 1))]).fit(
            Toy(burn_in=2), datamodule=ToyData()
        )
    for predicted in (torch.tensor([[0.5, 0.6]]), torch.tensor([[1.5, -0.5]])):
        with pytest.raises(ValueError, match="that sum to 1"):
            check_probabilities(predicted)


def test_a_student_of_other_classes_is_refused(tmp_path: Path) -> None:
    draws = posterior(tmp_path, [1.0])
    with pytest.raises(ValueError, match=r"must return logits \[48, 4\] .*, got \[48, 5\]"):
        distill(draws, nn.Linear(FEATURES, 5), examples(0), steps=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"noise_std": -1.0}, "noise_std must not be negative"),
        ({"prior_precision": -1.0}, "prior_precision must not be negative"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Distillation(nn.Linear(FEATURES, CLASSES), **arguments)


def test_integer_inputs_are_not_perturbed() -> None:
    data = (torch.arange(20).view(10, 2), torch.zeros(10))
    with pytest.raises(ValueError, match=r"torch.int64 cannot be perturbed: set noise_std to 0"):
        Student(nn.Linear(2, 2), batch_size=4).minibatch(data, 0)
    student = Student(nn.Linear(2, 2), batch_size=4, noise_std=0)
    assert student.minibatch(data, 0)[0].shape == (4, 2)


@pytest.mark.parametrize(
    ("make", "data", "student", "error"),
    [
        (Toy, ToyData, nn.Linear(FEATURES, CLASSES), "needs a classifier"),
        (Classifier, Data, nn.Linear(FEATURES, CLASSES + 1), "must return logits"),
        (Classifier, Data, nn.Linear(FEATURES + 4, CLASSES), "cannot be multiplied"),
    ],
)
def test_a_student_that_does_not_fit_is_refused_before_the_first_step(
    tmp_path: Path, make: Any, data: Any, student: nn.Module, error: str
) -> None:
    module = make(burn_in=19)
    with pytest.raises((ValueError, RuntimeError), match=error):
        trainer(tmp_path, 30, [Distillation(student)]).fit(module, datamodule=data())
    assert module.chain.steps == 0


def test_a_student_that_would_never_learn_is_refused(tmp_path: Path) -> None:
    late = Distillation(nn.Linear(FEATURES, CLASSES), start=30)
    with pytest.raises(ValueError, match="begins after step 30, and the run ends after 30"):
        trainer(tmp_path, 30, [late]).fit(Classifier(burn_in=19), datamodule=Data())


def test_an_optimizer_that_needs_several_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="several times a step"):
        Distillation(nn.Linear(FEATURES, CLASSES), torch.optim.LBFGS)


def test_the_students_nll_is_that_of_its_logits(tmp_path: Path) -> None:
    """Logits 150 apart: in float32 the probability is 0, and its NLL infinite."""
    student = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        student.weight.zero_()
        student.bias.copy_(torch.tensor([150.0, 0, 0, 0]))
    module, frozen = Classifier(burn_in=10), partial(torch.optim.SGD, lr=0.0)
    trainer(tmp_path, 12, [Distillation(student, frozen)]).fit(module, datamodule=Data())
    x, y = module.kept.held_out["test"].examples
    expected = functional.cross_entropy(student(x).double(), y)
    content = json.loads((tmp_path / "student.json").read_text())
    assert content["metrics"]["test"]["nll"] == pytest.approx(float(expected.detach()))


def test_what_a_student_that_diverged_has_no_number_for_is_null(tmp_path: Path) -> None:
    student, wild = nn.Linear(FEATURES, CLASSES), partial(torch.optim.SGD, lr=1e30)
    trainer(tmp_path, 30, [Distillation(student, wild)]).fit(Classifier(), datamodule=Data())

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    content = json.loads((tmp_path / "student.json").read_text(), parse_constant=refused)
    assert content["metrics"]["test"]["nll"] is None


def test_inputs_that_are_no_tensor_are_refused() -> None:
    x, y = examples(0)
    probabilities = torch.full((len(x), CLASSES), 1 / CLASSES)
    with pytest.raises(TypeError, match="with a tensor x, got a dict"):
        Student(nn.Linear(FEATURES, CLASSES)).check(({"a": x}, y), probabilities)
