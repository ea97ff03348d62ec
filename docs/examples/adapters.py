"""A trained transformer meets data of another kind: adapters beside its layers are sampled."""

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from lightning_sgmcmc import (
    SGHMC,
    BatchStream,
    Categorical,
    FanInGaussianPrior,
    PriorMetric,
    Sampler,
    SGMCMCModule,
    add_adapters,
)
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.metrics.classification import class_metrics
from torch import Tensor, nn
from torch.nn import functional

TOKENS, LENGTH, CLASSES = 40, 12, 3
Inputs = dict[str, Tensor]  # input_ids and attention_mask, [B, LENGTH] each


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        def split(t: Tensor) -> Tensor:  # [B, heads, LENGTH, width / heads]
            return t.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        seen = functional.scaled_dot_product_attention(q, k, v, mask[:, None, None].bool())
        return self.output(seen.transpose(-2, -3).flatten(-2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm, self.out_norm = (
            Attention(width, heads),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x), mask)
        return x + self.down(functional.gelu(self.up(self.out_norm(x))))


class Encoder(nn.Module):
    """Called as the classifiers of Hugging Face are, and named like them."""

    def __init__(self, width: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(TOKENS, width)
        self.layer = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        x = self.embeddings(input_ids)
        for block in self.layer:
            x = block(x, attention_mask)
        mask = attention_mask[..., None]
        return SimpleNamespace(logits=self.classifier((x * mask).sum(-2) / mask.sum(-2)))


def sequences(count: int, seed: int, shifted: bool) -> tuple[Inputs, Tensor]:
    """Return sequences of 4 to 12 tokens and labels, which the sum of their tokens' scores decides.

    In the shifted kind half of the tokens have other scores.
    """
    scores = torch.randn(2, TOKENS, CLASSES, generator=torch.Generator().manual_seed(0))
    meaning = torch.cat([scores[0, ::2], scores[int(shifted), 1::2]])
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(TOKENS, (count, LENGTH), generator=generator)
    lengths = torch.randint(4, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).float()
    logits = (meaning[ids] * mask[..., None]).sum(1)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    return {"input_ids": ids * mask.long(), "attention_mask": mask}, labels


def train(net: Encoder, steps: int = 600) -> Encoder:
    """Train the whole network on many sequences of the first kind."""
    (inputs, labels), adam = sequences(6000, 1, False), torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(steps):
        rows = torch.arange(100) + 100 * (step % 60)
        logits = net(**{name: t[rows] for name, t in inputs.items()}).logits
        adam.zero_grad()
        functional.cross_entropy(logits, labels[rows]).backward()
        adam.step()
    return net


class SequenceClassification(SGMCMCModule):
    """Batches are (x, y), with the dict that the network takes as x."""

    def __init__(
        self, net: nn.Module, sampler: Callable[[Iterable[Any]], Sampler], **chain: Any
    ) -> None:
        super().__init__(net, sampler, **chain)

    def law(self, x: Inputs) -> Categorical:
        return Categorical(self.net(**x).logits)

    def metrics(self, prediction: Any, batch: tuple[Inputs, Tensor]) -> dict[str, float]:
        return class_metrics(prediction.mean, prediction.nll, batch[1])


class Shifted(L.LightningDataModule):
    """Few sequences of the second kind."""

    def train_dataloader(self) -> BatchStream:
        return BatchStream(sequences(200, 2, True), batch_size=50)

    def test_dataloader(self) -> list[tuple[Inputs, Tensor]]:
        return [sequences(1000, 3, True)]


def sample(net: Encoder, steps: int = 2000, **trainer: Any) -> SequenceClassification:
    """Sample adapters of rank 2 beside queries and values, and the classifier, by four chains."""
    add_adapters(net, ["layer.*.query", "layer.*.value"], rank=2)
    net.classifier.requires_grad_(True)
    sampler = partial(SGHMC, lr="auto", prior=FanInGaussianPrior(), preconditioner=PriorMetric())
    adam = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), steps // 10)
    module = SequenceClassification(
        net, sampler, num_chains=4, burn_in=steps // 4, thinning=10, burn_in_optimizer=adam
    )
    L.Trainer(max_steps=steps, accelerator="cpu", **trainer).fit(module, datamodule=Shifted())
    return module
