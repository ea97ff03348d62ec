"""Low-rank adapters: small weights beside the frozen ones of a large network."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

#: Deviation of B where a chain starts, over its prior's.
_START = 0.1


class LowRankLinear(nn.Module):
    """A linear layer x -> (W + (alpha / r) B A) x + b with W and b frozen (Hu et al. 2022).

    A [r, in] and B [out, r] are the parameters. The prior that goes with them is
    :class:`~lightning_sgmcmc.FanInGaussianPrior`, A ~ N(0, 1/in) and B ~ N(0, 1/r): an output is
    then moved by a prior deviation of (alpha / r) |x| / sqrt(in), whatever the layer's width, so
    that alpha / r is that deviation for inputs of mean square 1.

    A starts as a draw from this prior and B from N(0, 0.01/r), close to the plain layer. At B = 0,
    where adapters that are optimized start, the gradient in A is zero, and a metric that learns
    from gradients would see only zeros.

    A and B are not identified, as B G and G^-1 A give the same layer. Their draws are to be judged
    by predictions.

    Nothing of the size of W is computed for each of K chains: (alpha / r) B (A x) is added to W x.
    ``weight`` is W + (alpha / r) B A, for modules that read it and do not call the layer, such as
    ``nn.MultiheadAttention`` its ``out_proj``. In the state ``weight`` and ``bias`` are the plain
    layer's, with ``A`` and ``B`` beside them: a checkpoint of the plain network fits.

    Args:
        linear: The layer; its tensors are shared, not copied.
        rank: r.
        alpha: As above.
    """

    bias: Tensor | None

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.rank, self.scale = rank, alpha / rank
        for name in ("weight", "bias"):  # ``weight`` as an attribute is the property
            parameter = getattr(linear, name)
            self._parameters[name] = parameter
            if parameter is not None:
                parameter.requires_grad_(False)
        W = linear.weight
        # A chain cannot move weights of 16 bits by its small steps.
        dtype = torch.promote_types(W.dtype, torch.float32)
        self.A = nn.Parameter(W.new_empty(rank, self.in_features, dtype=dtype))
        self.B = nn.Parameter(W.new_empty(self.out_features, rank, dtype=dtype))
        self.train(linear.training)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw A and B where a chain starts; W and b stay."""
        nn.init.normal_(self.A, std=self.in_features**-0.5)
        nn.init.normal_(self.B, std=_START * self.rank**-0.5)

    @property
    def frozen(self) -> Tensor:
        """W, [out, in]."""
        W = self._parameters["weight"]
        assert W is not None
        return W

    @property
    def weight(self) -> Tensor:
        """W + (alpha / r) B A, [out, in]."""
        return self.frozen + (self.scale * self.B @ self.A).to(self.frozen.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output [..., out] for x [..., in]."""
        out = functional.linear(x, self.frozen, self.bias)
        moved = functional.linear(functional.linear(x.to(self.A.dtype), self.A), self.B)
        return out + (self.scale * moved).to(out.dtype)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"rank={self.rank}, alpha={self.scale * self.rank:g}"
        )


def add_adapters(
    net: nn.Module, layers: Sequence[str], rank: int = 4, alpha: float | None = None
) -> nn.Module:
    """Freeze a network and put an adapter beside each linear layer that a pattern names.

    What is sampled besides is thawed afterwards: ``net.head.requires_grad_(True)``.

    Args:
        net: The network; changed in place, unless it is a linear layer itself.
        layers: Shell patterns over the names of its modules, such as ``"encoder.*.query"``. Modules
            of another kind that a pattern matches too are left as they are.
        rank: r of each adapter; at most the smaller side of each layer.
        alpha: The adapters' scale times r, r by default: see :class:`LowRankLinear`.

    Returns:
        The network.

    Raises:
        ValueError: If a pattern names no linear layer, or a rank or alpha does not fit.
    """
    modules = dict(net.named_modules(remove_duplicate=False))
    linear = {name: m for name, m in modules.items() if isinstance(m, nn.Linear)}
    chosen: dict[str, nn.Linear] = {}
    for pattern in layers:
        found = {name: m for name, m in linear.items() if fnmatchcase(name, pattern)}
        if not found:
            raise ValueError(_none_named(pattern, modules, list(linear)))
        chosen |= found
    if not chosen:
        raise ValueError("name the layers that get an adapter, by shell patterns")
    for name, layer in chosen.items():
        if is_lazy(layer.weight):
            raise ValueError(f"{name} has no size yet: call the network once before")
        widest = min(layer.in_features, layer.out_features)
        if not 1 <= rank <= widest:
            raise ValueError(
                f"rank must lie between 1 and {widest} for {name}, which maps {layer.in_features} "
                f"to {layer.out_features} numbers, got {rank}"
            )
    alpha = float(rank if alpha is None else alpha)
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be positive, got {alpha:g}")
    earlier = [m for m in modules.values() if isinstance(m, LowRankLinear)]
    sampled = [p for m in earlier for p in m.parameters() if p.requires_grad]
    net.requires_grad_(False)
    for adapter in sampled:  # of an earlier call, for other layers
        adapter.requires_grad_(True)
    made = {layer: LowRankLinear(layer, rank, alpha) for layer in chosen.values()}
    if isinstance(net, nn.Linear):
        return made[net]
    for name, layer in linear.items():  # a layer may have two names
        if layer in made:
            parent, _, own = name.rpartition(".")
            setattr(net.get_submodule(parent), own, made[layer])
    return net


def _none_named(pattern: str, modules: dict[str, nn.Module], linear: list[str]) -> str:
    """Return what is wrong with a pattern that names no linear layer."""
    others = {n: m for n, m in modules.items() if n and fnmatchcase(n, pattern)}
    if not others:
        return f"no linear layer is named like {pattern!r}: choose among {', '.join(linear)}"
    name, other = next(iter(others.items()))
    return (
        f"{pattern!r} names {name}, a {type(other).__name__} and no nn.Linear: choose among "
        f"{', '.join(linear)}"
    )
