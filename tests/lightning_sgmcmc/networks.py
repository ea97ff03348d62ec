"""The kinds of network that people have, small, and a task and data for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import add_adapters
from lightning_sgmcmc.chain import Task

CLASSES, SIDE = 4, 6
KINDS = ("mlp", "cnn", "transformer")
#: These take sequences with a padding mask, in a dict.
SEQUENCE_KINDS = ("masked", "adapted")
TOKENS, LENGTH = 12, 6


class Transformer(nn.Module):
    """Rows of an image as a sequence, one encoder layer, the mean as features."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
        self.embed, self.out = nn.Linear(SIDE, width), nn.Linear(width, CLASSES)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(self.embed(x.squeeze(-3))).mean(-2)
        logits: Tensor = self.out(features)
        return logits


class MaskedTransformer(nn.Module):
    """A classifier of sequences, in evaluation mode, where torch has a fused path of its own."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
        self.embed, self.out = nn.Embedding(TOKENS, width), nn.Linear(width, CLASSES)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.eval()

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        mask = x["attention_mask"]
        states = self.encoder(self.embed(x["input_ids"]), src_key_padding_mask=mask == 0)
        mask = mask[..., None]
        logits: Tensor = self.out((states * mask).sum(-2) / mask.sum(-2))
        return logits


def network(kind: str) -> nn.Module:
    """Return a classifier of what :func:`examples` gives, as torch initialises it."""
    torch.manual_seed(0)
    if kind == "masked":
        return MaskedTransformer()
    if kind == "adapted":
        net = add_adapters(MaskedTransformer(), ["encoder.*"], rank=2)
        net.get_submodule("out").requires_grad_(True)
        return net
    if kind == "mlp":
        hidden = nn.Linear(SIDE**2, 16)
        return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(16, CLASSES))
    if kind == "cnn":
        features = (nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(*features, nn.Flatten(), nn.Linear(36, CLASSES))
    return Transformer()


def images(count: int = 300) -> tuple[Tensor, Tensor]:
    """Return noisy images of eight patterns, two a class, and their classes."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(2 * CLASSES, 1, SIDE, SIDE, generator=generator)
    which = torch.randint(2 * CLASSES, (count,), generator=generator)
    noise = torch.randn(count, 1, SIDE, SIDE, generator=generator)
    return patterns[which] + 0.7 * noise, which % CLASSES


def sequences(count: int = 300) -> tuple[dict[str, Tensor], Tensor]:
    """Return sequences of 2 to LENGTH tokens, and the class whose scores of them are largest."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(TOKENS, (count, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).float()
    scores = torch.randn(TOKENS, CLASSES, generator=generator)
    labels = (scores[tokens] * mask[..., None]).sum(1).argmax(-1)
    return {"input_ids": tokens, "attention_mask": mask}, labels


def examples(kind: str) -> tuple[Any, Tensor]:
    """Return what a kind of network is trained on."""
    return sequences() if kind in SEQUENCE_KINDS else images()


class Classifier(Task):
    """A categorical likelihood with a network's logits."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def nll(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1], reduction="none")

    def predictive(self, batch: Any) -> Tensor:
        return self(batch[0]).softmax(-1)
