"""Networks of the classification tasks: their maps, their sizes, and what sampling asks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from scipy.ndimage import gaussian_filter
from scipy.signal import correlate2d
from scipy.special import expit
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.optim.swa_utils import update_bn
from torchvision.models.resnet import BasicBlock

from lightning_sgmcmc import GaussianPrior
from lightning_sgmcmc.chain import starts
from tasks.nets.cnn import ConvNet
from tasks.nets.drbm import DiscriminativeRBM
from tasks.nets.mlp import MLP
from tasks.nets.normalisation import (
    FilterResponseNorm2d,
    FrozenBatchNorm2d,
    ThresholdedLinear,
    calibrate,
    needs_calibration,
)
from tasks.nets.resnet import ResNet20
from tasks.nets.smooth_mlp import SmoothMLP
from tasks.networks import fit_network

SMALL = (2, 9, 8)
#: The ResNet-20 that Izmailov et al. 2021 sampled by HMC.
HMC: dict[str, Any] = {
    "activation": "silu", "shortcut": "projection", "bias": True, "thresholds": True,
}  # fmt: skip


def small_resnet(**settings: Any) -> ResNet20:
    return ResNet20(classes=3, image=SMALL, width=2, **settings)


def frozen_resnet(**settings: Any) -> ResNet20:
    net = small_resnet(normalisation="frozen", **settings)
    calibrate(net, [random(6, *SMALL, seed=7).float()])
    return net


#: Networks of every kind, with the shape of an example.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: MLP((5, 4), "sigmoid", inputs=6, outputs=3), (6,)),
    "smooth": (lambda: SmoothMLP((5, 4), "relu", inputs=9, outputs=3), (9,)),
    "cnn": (lambda: ConvNet((3, 2), 3, 1, (5,), SMALL, 4), SMALL),
    "drbm": (lambda: DiscriminativeRBM(6, 5, 4), (6,)),
    "frn": (small_resnet, SMALL),
    "frn-silu": (lambda: small_resnet(activation="silu", shortcut="projection"), SMALL),
    "frn-hmc": (lambda: small_resnet(**HMC), SMALL),
    "frozen": (frozen_resnet, SMALL),
    "frozen-tlu": (lambda: frozen_resnet(activation="tlu", shortcut="projection"), SMALL),
}


def random(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def make(kind: str) -> tuple[nn.Module, Tensor]:
    """Return a network in double precision, away from its start, and a batch for it."""
    build, shape = NETS[kind]
    torch.manual_seed(0)
    net = build().double()
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter += 0.3 * random(*parameter.shape, seed=number)
    return net, random(5, *shape)


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


# Sizes.


@pytest.mark.parametrize(
    ("hidden", "inputs", "parameters"),
    [((400, 400), 784, 478_410), ((30,), 20, 940)],
    ids=["psgld", "sgfs"],
)
def test_perceptrons_have_the_papers_sizes(
    hidden: tuple[int, ...], inputs: int, parameters: int
) -> None:
    assert size(MLP(hidden, inputs=inputs, outputs=10)) == parameters


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ({}, 1_374_506),
        ({"hidden": (500,)}, 3_257_606),
        ({"channels": (32, 32, 64), "hidden": (500,), "image": (3, 32, 32)}, 1_652_838),
        ({"padding": 0, "hidden": ()}, 62_346),
    ],
)
def test_convolutional_nets_have_the_stated_sizes(
    settings: dict[str, Any], parameters: int
) -> None:
    """By hand: n pixels become (n + 2 p - 4) // 2 in a layer of 5x5 kernels with padding p."""
    channels, padding = settings.get("channels", (32, 64)), settings.get("padding", 4)
    depth, side, _ = settings.get("image", (1, 28, 28))
    counted = 0
    for wide in channels:
        counted += (25 * depth + 1) * wide
        depth, side = wide, (side + 2 * padding - 4) // 2
    units = depth * side**2
    for wide in (*settings.get("hidden", (200, 200)), 10):
        counted += (units + 1) * wide
        units = wide
    assert size(ConvNet(**settings)) == counted == parameters


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ({"normalisation": "frozen"}, 269_722),
        ({"normalisation": "frozen", "shortcut": "projection"}, 272_474),
        ({"activation": "silu"}, 269_722),
        ({}, 269_722 + 688),
    ],
)
def test_resnets_have_the_stated_sizes(settings: dict[str, Any], parameters: int) -> None:
    """Against torchvision's blocks; each of 19 activations adds a threshold a channel."""
    net = ResNet20(**settings)
    assert size(net) == parameters
    thresholds = sum(m.threshold.numel() for m in net.modules() if isinstance(m, ThresholdedLinear))
    projection = settings.get("shortcut") == "projection"
    assert size(net) - thresholds == size(torchvision_resnet(3, 16, 10, projection))


def test_the_net_of_hmc_has_the_published_size() -> None:
    """784 channels of 21 convolutions have a bias and a threshold each."""
    assert size(ResNet20(**HMC)) == 272_474 + 2 * 784 == 274_042


def test_the_net_of_hmc_is_its_equations() -> None:
    """max(gamma x / sqrt(mean x^2 + 1e-6) + beta, tau) after every convolution, then swish."""
    net, x = make("frn-hmc")
    left = [p.detach() for p in net.parameters()]

    def convolved(x: Tensor, stride: int = 1) -> Tensor:
        kernel, bias, gamma, beta, tau = (left.pop(0) for _ in range(5))
        padded = functional.pad(x, [kernel.shape[-1] // 2] * 4)
        y = functional.conv2d(padded, kernel, bias, stride)
        y = y / (y.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
        y = gamma[:, None, None] * y + beta[:, None, None]
        return y.where(y > tau[:, None, None], tau[:, None, None].expand_as(y))

    def swish(x: Tensor) -> Tensor:
        return x / (1 + (-x).exp())

    y = swish(convolved(x))
    for stride in (1, 1, 1, 2, 1, 1, 2, 1, 1):
        inner = convolved(swish(convolved(y, stride)))
        y = swish(inner + (convolved(y, stride) if stride > 1 else y))
    weight, bias = left
    torch.testing.assert_close(net(x), y.mean((2, 3)) @ weight.T + bias, rtol=1e-12, atol=1e-12)


# Maps.


def test_logistic_units_are_scipys() -> None:
    net, x = make("mlp")
    w = [p.detach().numpy() for p in net.parameters()]
    first = expit(x.numpy() @ w[0].T + w[1])
    wanted = expit(first @ w[2].T + w[3]) @ w[4].T + w[5]
    np.testing.assert_allclose(net(x).detach().numpy(), wanted, atol=1e-13)


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_convnet_is_scipys(padding: int) -> None:
    """Two layers on odd sides, with correlations by SciPy and pooling by loops."""
    torch.manual_seed(0)
    net = ConvNet((3, 2), kernel=3, padding=padding, hidden=(4,), image=(2, 11, 10), classes=3)
    net.double()
    x = random(2, 2, 11, 10)
    w = [p.detach().numpy() for p in net.parameters()]
    logits = []
    for maps in x.numpy():
        for kernels, biases in ((w[0], w[1]), (w[2], w[3])):
            around = np.pad(maps, ((0, 0), (padding, padding), (padding, padding)))
            layer = []
            for kernel, bias in zip(kernels, biases, strict=True):
                pairs = zip(around, kernel, strict=True)
                total = sum(correlate2d(a, k, mode="valid") for a, k in pairs) + bias
                rows, columns = (n // 2 for n in total.shape)
                layer.append(
                    [
                        [total[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max() for j in range(columns)]
                        for i in range(rows)
                    ]
                )
            maps = np.maximum(layer, 0)
        hidden = np.maximum(w[4] @ maps.ravel() + w[5], 0)
        logits.append(w[6] @ hidden + w[7])
    np.testing.assert_allclose(net(x).detach().numpy(), logits, atol=1e-12)


def test_filter_response_norm_is_its_formula() -> None:
    x = random(4, 3, 5, 6)
    norm, unit = FilterResponseNorm2d(3, eps=0.1).double(), ThresholdedLinear(3).double()
    gamma, beta, tau = random(3, 3, seed=2)
    with torch.no_grad():
        norm.weight.copy_(gamma)
        norm.bias.copy_(beta)
        unit.threshold.copy_(tau)
    found = unit(norm(x)).detach().numpy()
    for n in range(4):
        for c in range(3):
            pixels = x[n, c].numpy()
            nu2 = (pixels**2).sum() / 30
            y = gamma[c].item() * pixels / np.sqrt(nu2 + 0.1) + beta[c].item()
            np.testing.assert_allclose(found[n, c], np.maximum(y, tau[c].item()), atol=1e-13)


def test_filter_response_norm_forgets_scale_but_not_sign() -> None:
    norm, x = FilterResponseNorm2d(3, eps=1e-30).double(), random(4, 3, 5, 6)
    scales = torch.tensor([1e-3, 7.0, 1e5], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(norm(scales * x), norm(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norm(-x), -norm(x), rtol=1e-12, atol=1e-12)
    # At this eps what is smaller than it is not normalised any more.
    assert FilterResponseNorm2d(3, eps=1e-2).double()(1e-3 * x).abs().max() < 0.1


def torchvision_resnet(depth: int, width: int, classes: int, projection: bool) -> nn.Sequential:
    """Return the batch-normalised network of torchvision's blocks."""
    layers: list[nn.Module] = [
        nn.Conv2d(depth, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    before = width
    for stage in range(3):
        after = width * 2**stage
        for number in range(3):
            stride, around = 1, None
            if stage > 0 and number == 0:
                stride = 2
                around = nn.Sequential(
                    nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
                )
                if not projection:
                    around = OptionA(after)
            layers.append(BasicBlock(before, after, stride, around))
            before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*layers)


class OptionA(nn.Module):
    """Pixels (0, 0), (0, 2), ... in the first channels, zeros in the others."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        out = x.new_zeros(b, self.channels, (h + 1) // 2, (w + 1) // 2)
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                out[:, :c, i, j] = x[:, :, 2 * i, 2 * j]
        return out


@pytest.mark.parametrize("shortcut", ["identity", "projection"])
@torch.no_grad()
def test_calibrated_resnet_is_torchs_batch_norm_in_eval_mode(shortcut: Any) -> None:
    """Torchvision's blocks with the same weights, their statistics by torch's own `update_bn`."""
    torch.manual_seed(0)
    net = small_resnet(normalisation="frozen", shortcut=shortcut).double()
    reference = torchvision_resnet(2, 2, 3, shortcut == "projection").double()
    pairs = list(zip(net.parameters(), reference.parameters(), strict=True))
    for number, (own, other) in enumerate(pairs):
        own += 0.3 * random(*own.shape, seed=number)
        other.copy_(own)
    batches = [random(8, *SMALL, seed=s) * (s + 1) for s in range(3)]
    calibrate(net, batches)
    update_bn(batches, reference)
    reference.eval()
    x = random(5, *SMALL, seed=9)
    torch.testing.assert_close(net(x), reference(x), rtol=1e-10, atol=1e-10)
    for own, other in zip(net.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


# What sampling asks.


@pytest.mark.parametrize("kind", NETS)
def test_stacked_weights_are_separate_networks(kind: str) -> None:
    """Outputs and gradients of `vmap` over two weight sets are those of two calls."""
    net, x = make(kind)
    both = [
        {n: p.detach() + 0.2 * i * random(*p.shape, seed=i) for n, p in net.named_parameters()}
        for i in range(2)
    ]
    stacked = {name: torch.stack([weights[name] for weights in both]) for name in both[0]}

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(net, weights, (x,)).log_softmax(-1)[:, 0].sum()

    outputs = vmap(lambda weights: functional_call(net, weights, (x,)))(stacked)
    gradients = vmap(grad(loss))(stacked)
    assert not torch.allclose(outputs[0], outputs[1], rtol=0.05)
    for i, weights in enumerate(both):
        wanted = functional_call(net, weights, (x,))
        torch.testing.assert_close(outputs[i], wanted, rtol=1e-10, atol=1e-10)
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        slopes = torch.autograd.grad(loss(leaves), list(leaves.values()))
        for name, slope in zip(leaves, slopes, strict=True):
            torch.testing.assert_close(gradients[name][i], slope, rtol=1e-8, atol=1e-9)


def dependence(net: nn.Module, x: Tensor) -> float:
    """Return by how much an example's output changes with the rest of its batch."""
    others = torch.cat([x[:1], 3 * random(*x[1:].shape, seed=5)])
    return float((net(x)[0] - net(others)[0]).abs().max())


@pytest.mark.parametrize("kind", NETS)
@torch.no_grad()
def test_an_examples_output_is_its_own(kind: str) -> None:
    net, x = make(kind)
    assert dependence(net.train(), x) < 1e-12
    torch.testing.assert_close(net(x[:1]), net(x)[:1], rtol=1e-11, atol=1e-12)


@torch.no_grad()
def test_with_batch_statistics_it_is_not() -> None:
    """Why the two normalisations are there: the same network by torch's batch normalisation."""
    torch.manual_seed(0)
    net = torchvision_resnet(2, 2, 3, projection=False).double()
    x = random(5, *SMALL)
    assert dependence(net.train(), x) > 0.01
    assert dependence(net.eval(), x) < 1e-12


def test_frozen_statistics_stay() -> None:
    """Under training mode, under training steps, and where chains start anew."""
    net = frozen_resnet()
    before = {name: b.clone() for name, b in net.named_buffers()}
    net.train()
    net(random(4, *SMALL).float()).sum().backward()
    names = [name for name, _ in net.named_parameters()]
    drawn = starts(net, names, "reinitialise", 0, [0, 1], GaussianPrior(variance=1.0))
    assert not torch.equal(drawn[0]["stem.0.weight"], drawn[1]["stem.0.weight"])
    for name, b in net.named_buffers():
        assert torch.equal(b, before[name]), name
    affine = [m for m in net.modules() if isinstance(m, FrozenBatchNorm2d)]
    assert len(affine) == 19
    for layer in affine:
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None


def test_resnets_start_anew_as_they_first_did() -> None:
    """Scales, shifts and thresholds return to 1, 0 and 0."""
    net, _ = make("frn")
    for part in net.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    for part in net.modules():
        if isinstance(part, FilterResponseNorm2d):
            assert (part.weight == 1).all()
            assert (part.bias == 0).all()
        if isinstance(part, ThresholdedLinear):
            assert (part.threshold == 0).all()


def test_frozen_net_without_statistics_is_refused_until_it_has_them() -> None:
    x = random(4, *SMALL).float()
    given, net = frozen_resnet(), small_resnet(normalisation="frozen")
    assert needs_calibration(net)
    with pytest.raises(RuntimeError, match="no statistics yet: call calibrate"):
        net(x)
    with pytest.raises(ValueError, match="one batch at least"):
        calibrate(net, [])
    net.load_state_dict(small_resnet(normalisation="frozen").state_dict())
    assert needs_calibration(net)
    net.load_state_dict(given.state_dict())
    assert not needs_calibration(net)
    torch.testing.assert_close(net(x), given(x), rtol=0, atol=0)


def test_failed_calibration_leaves_no_training_mode() -> None:
    net = frozen_resnet()
    with pytest.raises(ValueError, match="takes images"):
        calibrate(net, [random(4, *SMALL).float(), random(4, 1, 9, 8).float()])
    assert needs_calibration(net)
    with pytest.raises(RuntimeError, match="no statistics yet"):
        net(random(4, *SMALL).float())


def test_nothing_to_calibrate_is_said() -> None:
    assert not needs_calibration(small_resnet())
    with pytest.raises(ValueError, match="no frozen normalisation"):
        calibrate(small_resnet(), [random(4, *SMALL).float()])
    with pytest.raises(ValueError, match="no frozen normalisation"):
        calibrate(nn.BatchNorm2d(2), [random(4, *SMALL).float()])


# Arguments.


@pytest.mark.parametrize(
    ("chosen", "parameters"),
    [
        (
            {
                "class_path": "tasks.nets.cnn.ConvNet",
                "init_args": {"channels": [32, 32, 64], "hidden": [500], "image": [3, 32, 32]},
            },
            1_652_838,
        ),
        (
            {
                "class_path": "tasks.nets.resnet.ResNet20",
                "init_args": {"normalisation": "frozen", "shortcut": "projection"},
            },
            272_474,
        ),
        (
            {
                "class_path": "tasks.nets.drbm.DiscriminativeRBM",
                "init_args": {"features": 40, "hidden": 41, "classes": 23},
            },
            2647,
        ),
    ],
    ids=["cnn", "resnet", "drbm"],
)
def test_a_configuration_file_fills_them(chosen: dict[str, Any], parameters: int) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(nn.Module, "net")
    config = parser.parse_object({"net": chosen})
    assert size(parser.instantiate_classes(config).net) == parameters


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ConvNet(()), "one convolution at least"),
        (lambda: ConvNet((3, 0)), r"channels = \[3, 0\]"),
        (lambda: ConvNet(hidden=(0,)), r"hidden = \[0\]"),
        (lambda: ConvNet(classes=0), "classes = 0"),
        (lambda: ConvNet(padding=5), r"padding must lie in \[0, 4\], got 5"),
        (lambda: ConvNet(padding=-1), r"padding must lie in \[0, 4\], got -1"),
        (lambda: ConvNet(image=(28, 28)), r"image must be channels, height and width"),  # type: ignore[arg-type]
        (
            lambda: ConvNet((8, 8, 8), padding=0),
            "nothing is left of an image of 28x28 pixels after layer 3 of 3",
        ),
        (lambda: ResNet20(image=(3, 3, 32)), "4x4 pixels to be halved twice, got 3x32"),
        (lambda: ResNet20(width=0), "must be positive, got 10 and 0"),
        (lambda: ResNet20(normalisation="batch"), "must be one of frn, frozen, got 'batch'"),  # type: ignore[arg-type]
        (lambda: ResNet20(activation="tanh"), "must be one of relu, tlu, silu, got 'tanh'"),  # type: ignore[arg-type]
        (lambda: ResNet20(shortcut="none"), "must be one of identity, projection, got 'none'"),  # type: ignore[arg-type]
        (lambda: FilterResponseNorm2d(3, eps=0.0), "must be positive, got 3 and 0"),
        (lambda: MLP((3,), "elu"), "relu, tanh, silu, sigmoid, got 'elu'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_one_clear_error(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("kind", ["cnn", "frn", "frozen"])
@pytest.mark.parametrize("shape", [(5, 1, 9, 8), (5, 2, 8, 9), (2, 9, 8), (5, 144)])
def test_other_images_are_refused(kind: str, shape: tuple[int, ...]) -> None:
    net, _ = make(kind)
    with pytest.raises(ValueError, match=r"takes images \[B, 2, 9, 8\], got"):
        net(torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize("width", [0.7, 2.0])
def test_a_smooth_mlp_is_an_mlp_of_filtered_images(width: float) -> None:
    """The filter is SciPy's, in float64, to its last digits."""
    net = SmoothMLP((5,), "tanh", outputs=3, width=width)
    net.take_sizes(64, 3)
    net.double()
    net.blur = net.blur.new_tensor(
        gaussian_filter(np.eye(8), (width, 0), mode="constant", truncate=9)
    )
    x = random(4, 64)
    filtered = gaussian_filter(
        x.reshape(4, 8, 8).numpy(), (0, width, width), mode="constant", truncate=9
    )
    expected = net.layers(torch.from_numpy(filtered).reshape(4, 64))
    torch.testing.assert_close(net(x), expected)
    made = SmoothMLP((5,), inputs=64, outputs=3, width=width)
    torch.testing.assert_close(made.blur, net.blur.float())


def test_a_smooth_mlp_has_first_weights_that_are_a_gaussian_field() -> None:
    """Of W B, far from the border: correlation exp(-r^2 / (4 width^2)), down and to the right."""
    net = SmoothMLP((1,), inputs=625, outputs=2, width=1.5)
    filtered = torch.kron(net.blur, net.blur).double()
    covariance = (filtered.T @ filtered).reshape(25, 25, 25, 25)[12, 12]
    correlation = covariance / covariance[12, 12]
    for down, right in ((0, 1), (1, 0), (2, 1), (3, 4)):
        expected = np.exp(-(down**2 + right**2) / (4 * 1.5**2))
        assert float(correlation[12 + down, 12 + right]) == pytest.approx(expected, abs=1e-5)


def test_a_smooth_mlp_fits_to_data_in_its_own_precision() -> None:
    net = SmoothMLP((4,)).double()
    fit_network(net, torch.rand(5, 16), 3)
    made = SmoothMLP((4,), inputs=16, outputs=3).double()
    made.layers.load_state_dict(net.layers.state_dict())
    x = torch.rand(2, 16).double()
    expected = net(x)
    assert expected.dtype == torch.float64
    torch.testing.assert_close(expected, made(x), rtol=1e-6, atol=1e-6)  # made's is of float32
    fit_network(net, torch.rand(5, 16), 3)  # again, as a second run does
    assert torch.equal(net(x), expected)


def test_a_smooth_mlp_refuses_what_is_no_square_image() -> None:
    with pytest.raises(ValueError, match="square images of one channel, got 12 inputs"):
        SmoothMLP((5,)).take_sizes(12, 3)
    with pytest.raises(ValueError, match="width must be positive, got 0"):
        SmoothMLP((5,), width=0.0)


def test_a_last_image_counts_once_in_the_statistics() -> None:
    """Of 501 images the last, 30 times as wide, moves the variance by a few times its own share."""
    x = torch.randn(501, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    x[-1] *= 30
    norm = FrozenBatchNorm2d(1)
    fit_network(nn.Sequential(norm, nn.Flatten(), nn.Linear(36, 2)), x, 2)
    assert float(norm.running_var) == pytest.approx(float(x.var()), rel=0.05)
