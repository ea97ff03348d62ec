"""What a file gives a network: its body with a head anew, and names that compiling changed."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lightning_sgmcmc import add_adapters, load_posterior
from lightning_sgmcmc.chain.selection import load_pretrained, sampled_names
from tests.toy import NUM_FEATURES, Toy, ToyData, toy_data, trainer

WIDTH = 4


def body(layers: int) -> nn.Sequential:
    sizes = [NUM_FEATURES] + [WIDTH] * layers
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


class Net(nn.Module):
    """A body and a head, of which names and sizes may differ."""

    def __init__(
        self, outputs: int = 1, layers: int = 2, head: str = "head", seed: int = 0
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.name = body(layers), head
        setattr(self, head, nn.Linear(WIDTH, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = getattr(self, self.name)(self.body(x).tanh())
        return out


def saved(net: nn.Module, path: Path) -> str:
    if path.suffix == ".safetensors":
        save_file(net.state_dict(), path)
    else:
        torch.save(net.state_dict(), path)
    return str(path)


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"outputs": 10}, r"net.head.weight, net.head.bias start anew, all else is from \S+$"),
        ({"head": "fc"}, r"; net.fc.\w+, net.fc.\w+ of the file are not used$"),
    ],
)
def test_a_head_of_another_size_or_name_starts_anew(
    tmp_path: Path, caplog: Any, name: str, given: dict[str, Any], said: str
) -> None:
    file = saved(Net(seed=1, **given), tmp_path / name)
    module = Toy(net=Net())
    head = module.net.head.weight.clone()
    with caplog.at_level("INFO"):
        anew = load_pretrained(module, file, sampled_names(module, None))
    assert anew == ["net.head.weight", "net.head.bias"]
    assert torch.equal(module.net.body[1].weight, Net(seed=1, **given).body[1].weight)
    assert torch.equal(module.net.head.weight, head)
    (line,) = [r.getMessage() for r in caplog.records if "pretrained" in r.getMessage()]
    assert re.search(said, line), line


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (Net(layers=3), Net()),  # a longer body, the same head
        (Net(outputs=10, layers=3), Net()),  # and another head
        (Net(layers=1), Net()),  # a shorter one
        (nn.Sequential(nn.Linear(2, 2)), Net()),  # nothing in common
    ],
)
def test_another_body_is_refused(tmp_path: Path, given: nn.Module, own: nn.Module) -> None:
    module = Toy(net=own)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ValueError, match=r"net\.pt does not fit the module: net\..* differ"):
        load_pretrained(module, saved(given, tmp_path / "net.pt"), list(before))
    assert all(torch.equal(before[n], value) for n, value in module.state_dict().items())


def test_a_head_that_would_stay_random_is_refused(tmp_path: Path) -> None:
    module = Toy(net=Net())
    file = saved(Net(outputs=10), tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"net.head.bias, net.head.weight would start anew"):
        load_pretrained(module, file, sampled_names(module, ["net.body.*"]))


def test_tied_weights_may_be_given_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(5, 3), nn.Linear(3, 5)
            self.out.weight = self.embedding.weight

    given = Tied()
    state = {name: value for name, value in given.state_dict().items() if name != "out.weight"}
    save_file(state, tmp_path / "net.safetensors")
    module = Toy(net=Tied())
    assert load_pretrained(module, tmp_path / "net.safetensors") == []
    assert torch.equal(module.net.out.weight, given.embedding.weight)


@pytest.mark.parametrize("starts", [None, "same"])
def test_chains_share_the_body_and_start_heads_of_their_own(tmp_path: Path, starts: Any) -> None:
    file = saved(Net(outputs=10, seed=1), tmp_path / "net.pt")
    module = Toy(net=Net(), pretrained=file, num_chains=3, starts=starts, burn_in=1)
    module.select()
    module.chain.place()
    states = [module.chain.stack.state_of(k) for k in range(3)]
    for state in states:
        assert torch.equal(state["net.body.0.weight"], Net(seed=1).body[0].weight)
    heads = [state["net.head.weight"] for state in states]
    assert torch.equal(heads[0], module.net.head.weight)
    assert torch.equal(heads[1], heads[2]) == (starts == "same")


@pytest.mark.parametrize("file_has_adapters", [False, True])
def test_a_plain_network_gives_an_adapted_one_its_base(
    tmp_path: Path, file_has_adapters: bool
) -> None:
    given = Net(seed=1)
    if file_has_adapters:
        add_adapters(given, ["body.*"], rank=2)
    module = Toy(net=add_adapters(Net(), ["body.*"], rank=2))
    file = saved(given, tmp_path / "net.pt")
    anew = load_pretrained(module, file, sampled_names(module, None))
    factors = [f"net.body.{i}.{factor}" for i in range(2) for factor in ("A", "B")]
    assert anew == ([] if file_has_adapters else factors)
    assert torch.equal(module.net.head.weight, given.head.weight)
    assert torch.equal(module.net.body[0].frozen, Net(seed=1).body[0].weight)


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_draws_of_a_compiled_network_are_those_of_the_plain_one(
    tmp_path: Path, chains: int, compiled: bool
) -> None:
    def net(compile_it: bool) -> Any:
        return torch.compile(Net(), backend="eager") if compile_it else Net()

    file = saved(net(not compiled), tmp_path / "net.pt")
    module = Toy(
        net=net(compiled), pretrained=file, burn_in=2, num_chains=chains, sample=["net.body.*"]
    )
    trainer(tmp_path / "run", 6).fit(module, datamodule=ToyData())
    x = toy_data(3, 5)
    own = load_posterior(tmp_path / "run", Toy(net=net(compiled)))
    other = load_posterior(tmp_path / "run", Toy(net=net(not compiled)))
    expected, found = own.predictive(x), other.predictive(x)
    torch.testing.assert_close(found.mean, expected.mean)
    assert float(found.epistemic_std.min()) > 0
    torch.testing.assert_close(found.epistemic_std, expected.epistemic_std)
    for theirs, ours in zip(other, own, strict=True):
        for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
            assert torch.equal(a, b)
    other.save_mean_network(tmp_path / "mean.safetensors")
    Toy(net=Net(), pretrained=str(tmp_path / "mean.safetensors")).select()
