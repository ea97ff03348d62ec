"""docs/adapters.md: its example adapts a network that it trains, and its snippets run."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import adapters
import pytest
import torch

from lightning_sgmcmc import SGHMC, add_adapters, load_posterior

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "adapters.md").read_text()
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.S)
QUIET: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def test_the_page_shows_the_example_as_it_stands() -> None:
    assert (ROOT / "docs" / "examples" / "adapters.py").read_text() == SHOWN[0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_adapters_take_a_trained_network_to_other_data(tmp_path: Path) -> None:
    """NLL and calibration error fall, and the draws give the same on top of another base."""
    module, found = adapters.compare(200, 80, default_root_dir=tmp_path, **QUIET)
    base, one, ensemble = found.values()
    assert ensemble["nll"] < one["nll"] < base["nll"] - 0.2
    assert ensemble["ece"] < 0.5 * base["ece"]
    assert f"{module.chain.sampler.num_parameters} weights beside" in PAGE
    (folder,) = {path.parents[2] for path in tmp_path.rglob("index.json")}
    net = add_adapters(adapters.Encoder(), ["layer.*.query", "layer.*.value"], rank=2)
    other = adapters.SequenceClassification(net, partial(SGHMC, lr=1e-3))
    posterior = load_posterior(folder, other)
    inputs, labels = adapters.sequences(50, 3, True)
    prediction = posterior.predict(inputs)
    assert prediction.mean.shape == (50, adapters.CLASSES)
    assert prediction.sample(3).shape == (3, 50)
    log_density = prediction.log_density(labels)
    expected = prediction.mean.gather(1, labels[:, None]).squeeze(1).log()
    torch.testing.assert_close(log_density, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_last_layer_of_a_network_of_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page shows it: the chains move the head, and nothing else."""
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(SHOWN[1], names)
    module = names["module"]
    assert module.kept.num_draws == 6
    heads = [module.chain.state(k)["net.fc.weight"] for k in range(3)]
    assert not torch.equal(heads[0], heads[1])
    statistics = names["torchvision"].models.resnet18(weights=None).state_dict()
    for name, value in module.net.state_dict().items():
        if "running" in name or "tracked" in name:
            assert torch.equal(value, statistics[name])
