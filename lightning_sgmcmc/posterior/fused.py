"""Methods of which the network is a narrow perceptron, which compiled loops evaluate."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import vmap
from torch.nn import functional

from lightning_sgmcmc.chain.stack import ChainStack, MethodOf
from lightning_sgmcmc.kernels import chosen

#: Outputs of a layer and inputs of the network, above which matrix products cost less than what the
#: loops save (scripts/bench/predict.py).
WIDEST = 128

_MODULES: dict[type, str] = {
    nn.Identity: "identity",
    nn.Dropout: "identity",
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.SiLU: "silu",
    nn.Softmax: "softmax",
    nn.LogSoftmax: "log_softmax",
}
_FUNCTIONS: dict[Any, str] = {
    functional.relu: "relu",
    torch.relu: "relu",
    functional.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
    functional.tanh: "tanh",
    torch.tanh: "tanh",
    functional.silu: "silu",
    functional.softmax: "softmax",
    torch.softmax: "softmax",
    functional.log_softmax: "log_softmax",
    torch.log_softmax: "log_softmax",
}
_METHODS = ("relu", "sigmoid", "tanh", "softmax", "log_softmax")
_OVER_CLASSES = ("softmax", "log_softmax")


class _Layer(NamedTuple):
    """Names of a layer's weights, its outputs and inputs, and what follows it."""

    weight: str
    bias: str | None
    shape: tuple[int, int]
    step: str


class _Chain(NamedTuple):
    """Layers, the keys that lead from the batch to their inputs, and their nodes in order."""

    layers: list[_Layer]
    keys: list[Any]
    nodes: list[fx.Node]


class Fused:
    """A method whose network is a chain of linear layers and activation functions.

    Args:
        chain: From an entry of the batch, [b, inputs], to the first tensor that is used by
            something else than another such layer.
        rest: From the chain's outputs and the batch to the method's, of one draw; None where
            these are the same.

    Attributes:
        working: Bytes of working memory that do not grow with draws or examples.
        each: Bytes that a draw takes for an example besides; None where that is to be measured.
    """

    def __init__(self, chain: _Chain, rest: Callable[[Tensor, Any], Any] | None) -> None:
        from lightning_sgmcmc.kernels import networks

        self._kernels, self._chain, self._rest = networks, chain, rest
        self.working = 4 * networks.working_numbers([layer.shape for layer in chain.layers])
        self.each = 4 * chain.layers[-1].shape[0] if rest is None else None

    def inputs(self, batch: Any) -> Any:
        """Return the entry of a batch that goes through the network."""
        return reduce(operator.getitem, self._chain.keys, batch)

    def whole(self, examples: int) -> int:
        """Return at most as many examples, in whole tiles of the loops if they fill one."""
        tile = self._kernels.TILE
        return examples // tile * tile or examples

    def __call__(self, stack: ChainStack, batch: Any) -> Any:
        """Return the method's outputs [k, b, ...] under stacked draws."""
        weights = dict(zip(stack.names, stack.weights, strict=True))
        layers = [
            self._kernels.Layer(weights[layer.weight], weights.get(layer.bias or ""), layer.step)
            for layer in self._chain.layers
        ]
        outputs = self._kernels.network(layers, self.inputs(batch))
        return outputs if self._rest is None else vmap(self._rest, (0, None))(outputs, batch)


def fused(
    module: nn.Module, method: str, weights: Mapping[str, Tensor], batch: Any
) -> Fused | None:
    """Return how compiled loops evaluate a method, or None where torch does.

    They do where Numba is installed, weights and inputs are float32 on the CPU, no layer is wide,
    and ``torch.fx`` follows the method and finds each sampled weight once, in the network's chain.

    Args:
        module: The module.
        method: Takes a batch.
        weights: A draw, by the names that the module gives its weights.
        batch: Some examples.
    """
    if any(chosen(tensor.device, tensor.dtype) != "numba" for tensor in weights.values()):
        return None
    root = MethodOf(module, method)
    if any(part._forward_hooks or part._forward_pre_hooks for part in root.modules()):
        return None
    nothing: Any = ()  # what the argument's type is differs between releases of torch
    try:
        graph = fx.Tracer(autowrap_modules=nothing).trace(root)
    except Exception:  # whatever a user's method raises where it meets no tensors
        return None
    chain = _chain(root, graph)
    rest = _rest(graph, chain, {f"module.{name}" for name, _ in module.named_buffers()})
    names = [name for layer in chain.layers for name in layer[:2] if name is not None]
    if rest is None or not names or sorted(names) != sorted(weights):
        return None
    nodes = list(rest.nodes)
    same = nodes[-1].args[0] is nodes[0]
    result = Fused(chain, None if same else fx.GraphModule(root, rest))
    x, (_, _, (_, inputs), _) = result.inputs(batch), chain.layers[0]
    widest = max(inputs, *(layer.shape[0] for layer in chain.layers))
    fits = isinstance(x, Tensor) and x.dim() == 2 and x.shape[1] == inputs and widest <= WIDEST
    return result if fits and chosen(x.device, x.dtype) == "numba" else None


def _chain(root: nn.Module, graph: fx.Graph) -> _Chain:
    """Return the chain that begins with the graph's first linear layer; without one it is empty."""
    modules, chain = dict(root.named_modules()), _Chain([], [], [])
    node = next((node for node in graph.nodes if _is_linear(modules, node)), None)
    if node is None:
        return chain
    previous = before = node.args[0]
    while isinstance(before, fx.Node) and before.target is operator.getitem:
        chain.keys.insert(0, before.args[1])
        before = before.args[0]
    if not isinstance(before, fx.Node) or before.op != "placeholder":
        return chain
    while node is not None:
        if _is_linear(modules, node):
            part, name = modules[node.target], node.target.removeprefix("module.")
            bias = None if part.bias is None else f"{name}.bias"
            shape = (part.out_features, part.in_features)
            chain.layers.append(_Layer(f"{name}.weight", bias, shape, "identity"))
        else:
            step = _step(modules, node, previous)
            if step is None or (step != "identity" and chain.layers[-1].step != "identity"):
                break
            if step != "identity":
                chain.layers[-1] = chain.layers[-1]._replace(step=step)
        chain.nodes.append(node)
        previous, node = node, next(iter(node.users)) if len(node.users) == 1 else None
    return chain


def _is_linear(modules: Mapping[str, nn.Module], node: fx.Node) -> bool:
    return node.op == "call_module" and type(modules[str(node.target)]) is nn.Linear


def _step(modules: Mapping[str, nn.Module], node: fx.Node, previous: fx.Node) -> str | None:
    """Return which step a node takes on the layer before it; None if it does something else."""
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    step = None
    if node.op == "call_module":
        part = modules[str(node.target)]
        if not (isinstance(part, nn.Dropout) and part.training):
            step, dim = _MODULES.get(type(part)), getattr(part, "dim", None)
    elif node.op == "call_function":
        step = _FUNCTIONS.get(node.target)
    elif node.op == "call_method" and node.target in _METHODS:
        step = str(node.target)
    if not node.args or node.args[0] is not previous or node.kwargs.get("dtype") is not None:
        return None
    return None if len(node.args) > 2 or (step in _OVER_CLASSES and dim not in (-1, 1)) else step


def _rest(graph: fx.Graph, chain: _Chain, buffers: set[str]) -> fx.Graph | None:
    """Return what follows a chain, from its outputs and the batch; None if other modules do.

    Tensors that are no buffers may have been drawn while the method was traced.
    """
    inner, rest = set(chain.nodes), fx.Graph()
    outputs, batch = rest.placeholder("outputs"), rest.placeholder("batch")
    copies = dict.fromkeys(chain.nodes[-1:], outputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            copies[node] = batch
        elif node not in inner:
            if node.op == "call_module" or (node.op == "get_attr" and node.target not in buffers):
                return None
            copies[node] = rest.node_copy(node, copies.__getitem__)
    return rest
