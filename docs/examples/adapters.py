"""A trained transformer meets data of another kind: adapters beside its layers are sampled."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import (
    SGHMC,
    BatchStream,
    Categorical,
    FanInGaussianPrior,
    PriorMetric,
    SGMCMCModule,
    add_adapters,
)
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.metrics.classification import class_metrics

TOKENS, LENGTH, CLASSES = 40, 8, 3
Inputs = dict[str, Tensor]  # input_ids and attention_mask, [B, LENGTH] each


class Attention(nn.Module):
    """Attention whose queries, keys and values are linear layers of their own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs [B, LENGTH, width]; positions of mask 0 are not looked at."""

        def split(t: Tensor) -> Tensor:  # [B, heads, LENGTH, width / heads]
            return t.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        seen = functional.scaled_dot_product_attention(q, k, v, mask[:, None, None].bool())
        return self.output(seen.transpose(-2, -3).flatten(-2))


class Block(nn.Module):
    """One layer of the encoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm, self.out_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the layer's outputs [B, LENGTH, width]."""
        x = x + self.attention(self.norm(x), mask)
        return x + self.down(functional.gelu(self.up(self.out_norm(x))))


class Encoder(nn.Module):
    """Called as the classifiers of Hugging Face are, and named like them."""

    def __init__(self, width: int = 16, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(TOKENS, width)
        self.layer = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """Return ``logits`` [B, CLASSES], of the mean over the positions that count."""
        x = self.embeddings(input_ids)
        for block in self.layer:
            x = block(x, attention_mask)
        mask = attention_mask[..., None]
        return SimpleNamespace(logits=self.classifier((x * mask).sum(-2) / mask.sum(-2)))


def sequences(count: int, seed: int, shifted: bool) -> tuple[Inputs, Tensor]:
    """Return sequences of 4 to 8 tokens and labels, which the sum of their tokens' scores decides.

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

    def law(self, x: Inputs) -> Categorical:
        """Return the law of the labels."""
        return Categorical(self.net(**x).logits)

    def metrics(self, prediction: Any, batch: tuple[Inputs, Tensor]) -> dict[str, float]:
        """Return error, NLL, Brier score, calibration error and entropy."""
        return class_metrics(prediction.mean, prediction.nll, batch[1])


class Shifted(L.LightningDataModule):
    """Few sequences of the second kind."""

    def train_dataloader(self) -> BatchStream:
        """Return 200 sequences, all of them at every step."""
        return BatchStream(sequences(200, 2, True), batch_size=200, sampling="full")

    def test_dataloader(self) -> list[tuple[Inputs, Tensor]]:
        """Return 1,000 sequences as one batch."""
        return [sequences(1000, 3, True)]


def sample(net: Encoder, steps: int, **trainer: Any) -> SequenceClassification:
    """Sample adapters of rank 2 beside queries and values, and the classifier, by four chains."""
    add_adapters(net, ["layer.*.query", "layer.*.value"], rank=2)
    net.classifier.requires_grad_(True)
    sampler = partial(SGHMC, lr="auto", prior=FanInGaussianPrior(), preconditioner=PriorMetric())
    adam = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), steps // 4)
    module = SequenceClassification(
        net, sampler, num_chains=4, burn_in=steps // 2, thinning=10, burn_in_optimizer=adam
    )
    L.Trainer(max_steps=steps, accelerator="cpu", **trainer).fit(module, datamodule=Shifted())
    return module


def compare(
    base_steps: int = 600, steps: int = 800, **trainer: Any
) -> tuple[SequenceClassification, dict[str, dict[str, float]]]:
    """Return the sampled module, and metrics on the second kind's test set before and after."""
    torch.manual_seed(0)
    net, (inputs, labels) = train(Encoder(), base_steps), sequences(1000, 3, True)
    with torch.no_grad():
        logits = net(**inputs).logits
    nll = functional.cross_entropy(logits, labels, reduction="none")
    base = class_metrics(logits.softmax(-1), nll, labels)
    module = sample(net, steps, **trainer)
    ensemble = module.metrics(module.kept.ensemble("test"), (inputs, labels))
    one = module.kept.measure_network("test")
    return module, {"the base": base, "one draw (mean of 4)": one, "all draws": ensemble}


if __name__ == "__main__":
    for name, found in compare()[1].items():
        print(f"{name:22s}" + "".join(f"{k} {found[k]:6.3f}  " for k in ("nll", "ece")))
