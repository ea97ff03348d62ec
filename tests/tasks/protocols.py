"""The papers' protocols as written: what each cell of each experiment has to run with.

Written from the papers and from the pages in ``docs``, not from the code. A row names cells by
patterns, says where its values stand, and states them; later rows complete and correct earlier
ones. ``ours`` says of a value that is not the paper's what the paper has, and why ours differs.

Step sizes: ``lr`` acts on the mean loss over N examples. The step of SGFS's paper acts on the sum,
halved: lr = epsilon N / 2; so does pSGLD's epsilon in its equation 2, while its networks' epsilon,
as the authors' code has it, is lr. NLD's eta is lr. On the Gaussians N = 1 and the step h on the
sum is lr.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any


class Each(tuple[Any, ...]):
    """Values of one setting in the calls of a study, in their order."""

    __slots__ = ()


@dataclass(frozen=True)
class Row:
    """What some cells run with.

    Attributes:
        cells: Patterns of their names, separated by spaces.
        where: Where the values stand.
        states: The values.
        ours: What the paper has instead, and why, by the name of the value.
    """

    cells: str
    where: str
    states: Mapping[str, Any]
    ours: Mapping[str, str] = field(default_factory=dict)


#: What holds where no row says otherwise: plain Langevin steps of constant size at T = 1.
USUAL: dict[str, Any] = {
    "options": {},
    "metric": {"name": "Identity"},
    "freeze": None,  # there is nothing to freeze
    "step_fraction": None,
    "bound": None,  # of minibatch noise, where ``lr: auto`` goes by it
    "gradients": None,  # of the minibatch, unchanged
    "schedule": None,
    "temperature": 1.0,
    "thinning": 1,
    "weights": "auto",  # by time; an optimizer's iterates count alike
    "chains": 1,
    "optimizer": None,  # of burn-in
    "pruning": None,
    "dropout": 0.0,
}

#: Training rows of the 10 % file of KDD Cup 99, six most populous classes: stands in for the file.
KDD_ROWS = 440_000


def gaussian(variance: float) -> str:
    """Return the prior N(0, variance) on every weight."""
    return f"GaussianPrior(variance={variance:g}, mean=0)"


def rmsprop(
    alpha: float = 0.99, eps: float = 1e-5, floor: float = 0.0, start: bool = False
) -> dict[str, Any]:
    """Return pSGLD's metric (Algorithm 1: alpha = .99, lambda = 1e-5, no Gamma)."""
    found = {"alpha": alpha, "eps": eps, "floor": floor, "gamma_probes": None}
    return {"name": "RMSProp", "start_at_gradient": start} | found


def lbfgs(
    memory: int,
    r: float = 0.25,
    omega: tuple[float, ...] = (5.0, 10.0, 0.9),
    slots: int | None = 1,
) -> Any:
    """Return HASGLD-SA's metric, by default with one slot: the operator of some random step."""
    return {
        "name": "AveragedLBFGS", "memory": memory, "r": r, "delta": 1e-3, "slots": slots,
        "omega": omega,
    }  # fmt: skip


def fisher(name: str, floor: float = 1e-5) -> dict[str, Any]:
    """Return SGFS's metric: the covariance of scores, averaged with 1/t."""
    found = {"eps": 0.0, "floor": floor, "power": 1.0, "centred": True, "labels": "data"}
    start = {} if name == "DiagonalFisher" else {"diagonal_start": True}
    return {"name": name, "memory": None} | found | start


def sgfs(variant: str, count_prior: bool, floor: float = 1e-5) -> dict[str, Any]:
    """Return SGFS with B = gamma N I."""
    kinds = {"full": "FullFisher", "diagonal": "DiagonalFisher"}
    return {
        "sampler": "SGFS",
        "options": {"variant": variant, "b": "fisher", "count_prior": count_prior},
        "metric": fisher(kinds[variant], floor),
    }


def sgfs_lr(alpha: float, n: int, batch: int) -> float:
    """Return 2 / (gamma (1 + alpha^2)), gamma = (N + n) / n: its Algorithm 1, solved for lr."""
    return 2 / ((n + batch) / batch * (1 + alpha**2))


def hmc(leapfrogs: Any, acceptance: float, lr: float) -> dict[str, Any]:
    """Return a reference by HMC with mass: its prior is inside the potential."""
    options = {"leapfrog_steps": leapfrogs, "target_acceptance": acceptance, "jitter": 0.3}
    exact = {"law": "exact", "batch": None, "prior": "FlatPrior()"}
    return {"sampler": "HMC", "options": options, "lr": lr} | exact


def optimized(name: str, **arguments: Any) -> dict[str, Any]:
    """Return an optimizer of torch."""
    options = {"optimizer": {"name": name} | arguments}
    return {"sampler": "Optimized", "options": options, "temperature": 0.0}


def pruning(rate: float, start: int, stop: int, every: int) -> dict[str, Any]:
    """Return magnitude pruning by layer, in steps."""
    stated = f"rate={rate}, start={start}, stop={stop}, every={every}, scope=layer"
    return {"pruning": f"GradualPruning({stated})"}


def adam(
    steps: int,
    lr: float = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    final: float = 0.003,
) -> str:
    """Return the optimizer of burn-in, whose step falls to a fraction ``final`` of its own."""
    return f"Adam(lr={lr}, betas={betas}), {steps} steps, warmup 0.02, final {final}"


def halved(every: int) -> str:
    """Return a step that is halved every so many steps."""
    return f"BlockDecay(every={every}, factor=0.5)"


_EXACT = {"law": "exact", "batch": None, "prior": "FlatPrior()"}

# --- Li, Chen, Carlson, Carin 2016 (pSGLD) ------------------------------------------------------

_H = Each(0.3 * 0.8**i for i in (0, 1, 2, 4, 6, 8, 11, 14))
_CODE = "the paper names neither; the authors' 2-D script has lambda = 1e-4, gradient noise sd .1"
PSGLD_GAUSSIAN = [
    Row(
        "*",
        "section 'Simple simulation', Figure 1: N(0, diag(.16, 1)); steps of the authors' script",
        _EXACT | {
            "lr": _H, "covariance": [[0.16, 0.0], [0.0, 1.0]], "gradient_noise": 0.1,
            "burn_in": 2_000, "steps": 22_000, "chains": 50,
        },
        {"gradient_noise": _CODE, "steps": "2e5 draws; here 10 chains of 20,000, five groups"},
    ),
    Row("sgld", "Figure 1", {"sampler": "SGLD"}),
    Row(
        "psgld",
        "the authors' script, which draws the figure",
        {
            "sampler": "SGLD", "freeze": False, "burn_in": 50_000, "steps": 70_000,
            "metric": rmsprop(0.9999, 1e-4, start=True),
        },
        {"metric": "alpha = .99 in the paper's text, .9999 in the script; " + _CODE},
    ),
    Row(
        "psgld_99 psgld_frozen",
        "Algorithm 1 with the text's alpha = .99",
        {"sampler": "PSGLD", "metric": rmsprop(0.99, 1e-4), "freeze": False},
        {"metric": _CODE},
    ),
    Row("psgld_frozen", "ours", {"freeze": True}, {"freeze": "the paper's C adapts to the end"}),
    Row(
        "sghmc", "ours, beyond the paper", {"sampler": "SGHMC", "options": {"momentum": 0.9}}
    ),
    Row(
        "paths",
        "Figures 1 (b) and 6: 600 samples; targets diag(.16, a) with (a, h) = (.5, .1), (1, .3), "
        "(2, .1), of SGLD, the script's and the text's pSGLD",
        {
            "sampler": Each(["SGLD"] * 6 + ["PSGLD"] * 3),
            "metric": Each(
                [{"name": "Identity"}] * 3
                + [rmsprop(0.9999, 1e-4, start=True)] * 3
                + [rmsprop(0.99, 1e-4)] * 3
            ),
            "freeze": Each([None] * 3 + [False] * 6),
            "lr": Each([0.1, 0.3, 0.1] * 3),
            "covariance": Each([[[0.16, 0.0], [0.0, a]] for a in (0.5, 1.0, 2.0)] * 3),
            "burn_in": 0, "steps": 600, "chains": 500,
        },
    ),
]  # fmt: skip

AUSTRALIAN = [
    Row(
        "sgld psgld-*",
        "section 'Bayesian logistic regression': N = 690, minibatches of 5, sigma^2 = 100, 5,000 "
        "iterations, 50 runs, epsilon from 1e-7 to 1e-4",
        {
            "sampler": "SGLD", "prior": gaussian(100), "law": "independent", "batch": 5,
            "burn_in": 1_000, "steps": 5_000, "chains": 50,
            "lr": Each(e * 690 / 2 for e in (1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)),
        },
        {
            "burn_in": "not given",
            "lr": "the grid between its ends is not given; 3e-4 and 1e-3 are beyond it",
        },
    ),
    Row("psgld-*", "Algorithm 1", {"sampler": "PSGLD", "metric": rmsprop(), "freeze": False}),
    Row("psgld-frozen", "ours", {"freeze": True}, {"freeze": "the paper's C adapts to the end"}),
    Row(
        "truth",
        "the paper compares with 1e6 HMC samples",
        hmc(5, 0.95, 0.8 * 690) | {"burn_in": 200, "steps": 700, "chains": 100},
        {"steps": "1e6 samples of an HMC that is not described; here 50,000, with mass"},
    ),
]  # fmt: skip

A9A = [
    Row(
        "sgld psgld sghmc natural sgfs *-published",
        "section 'Bayesian logistic regression', a9a: minibatches of 50, sigma^2 = 10, thinning "
        "50, burn-in 500, T = 1.5e4 iterations",
        {
            "prior": gaussian(10), "law": "independent", "batch": 50, "burn_in": 500,
            "thinning": 50, "steps": 15_000, "chains": 8,
        },
        {"chains": "one run; here eight, for the spread"},
    ),
    Row(
        "*-published",
        "the same: epsilon = 5e-2 of both",
        {"lr": 0.05, "schedule": "ConstantStep()"},
        {"lr": "an epsilon of equation 2 would be unstable above 8e-5: it is taken for lr"},
    ),
    Row("sgld*", "Table 1", {"sampler": "SGLD"}),
    Row("psgld*", "Algorithm 1", {"sampler": "PSGLD", "metric": rmsprop(), "freeze": False}),
    Row("sgld", "docs/a9a.md: chosen on held-out rows", {"lr": 1.0}),
    Row("psgld", "docs/a9a.md: chosen on held-out rows", {"lr": 0.02, "freeze": True}),
    Row(
        "sghmc",
        "docs/a9a.md, beyond the paper",
        {
            "sampler": "SGHMC", "options": {"momentum": 0.9}, "metric": rmsprop(), "freeze": True,
            "lr": 0.003,
        },
    ),
    Row(
        "natural",
        "docs/a9a.md, beyond the paper",
        {
            "sampler": "NaturalLangevin", "freeze": True, "lr": 0.01,
            "metric": {
                "name": "QuasiDiagonalFisher", "eps": 1e-4, "power": 0.5, "labels": "data",
                "memory": None, "floor": 0.0,
            },
        },
    ),
    Row(
        "sgfs",
        "docs/a9a.md, beyond the paper",
        sgfs("full", count_prior=True) | {"freeze": True, "lr": 0.003},
    ),
    Row(
        "hmc*",
        "docs/a9a.md: the posterior itself",
        hmc(5, 0.8, 0.8 * 32_561) | {"burn_in": 100, "steps": 600, "chains": 8},
    ),
]  # fmt: skip


def _networks(
    lengths: Mapping[str, tuple[int, int, int, int]],
    where: str,
    ours: Mapping[str, str],
) -> list[Row]:
    """Return the rows of lengths: steps, steps between halvings, steps between draws, chains."""
    found = []
    for column, (steps, every, thinning, chains) in lengths.items():
        common: dict[str, Any] = {
            "prior": gaussian(1), "law": "reshuffled", "batch": 100, "steps": steps,
            "burn_in": steps // 5, "thinning": thinning, "chains": chains,
            "schedule": "ConstantStep()",
        }  # fmt: skip
        found += [
            Row(f"{column}-*", where, common, ours),
            Row(
                f"{column}-psgld-published* {column}-psgld-chosen {column}-sgld-published "
                f"{column}-sgld-chosen {column}-distilled*",
                "the authors' code: 300 steps of burn-in, halved every L epochs",
                {"schedule": halved(every), "burn_in": min(300, steps // 10)},
            ),
            Row(
                f"{column}-sgd* {column}-rms* {column}-dropout-*",
                "the optimizers' last iterate, halved every L epochs as the samplers",
                {"schedule": halved(every), "burn_in": steps - 1, "thinning": 1},
            ),
        ]
    return found


def _averaged(column: str, steps: int, thinning: int) -> Row:
    return Row(
        f"{column}-*-averaged",
        "ours: the optimizers' mean over the iterates that samplers average",
        {"burn_in": min(300, steps // 10), "thinning": thinning, "weights": "time"},
    )


def _after_adam(column: str, steps: int) -> Row:
    return Row(
        f"{column}-sghmc",
        "ours, beyond the paper: after Adam for a quarter of the run",
        {"burn_in": 3 * steps // 8, "optimizer": adam(steps // 4)},
    )


def _beyond(column: str, steps: int, every: int) -> list[Row]:
    """Return the rows of lengths of what is on MNIST alone."""
    return [
        Row(
            f"{column}-bbb-*",
            "ours: fitted for 19/20 of the run, then 100 draws of q",
            {
                "schedule": halved(every), "burn_in": steps - steps // 20,
                "thinning": steps // 20 // 100,
            },
        ),
        Row(
            f"{column}-deep-ensemble",
            "ours, beyond the paper",
            {
                "schedule": f"WarmupCosine(steps={steps}, warmup=0.02, final=0.003)",
                "chains": 5, "burn_in": steps - 1, "thinning": 1,
            },
        ),
        Row(f"{column}-*-seed?", "runs of one repetition", {"chains": 1}),
        _after_adam(column, steps),
    ]  # fmt: skip


_T = "T = 1 in the equations; the authors' code draws noise of variance 2 lr G / N^2, T = 1/N"
_START = "V = 0 in Algorithm 1, the first squared gradient in the authors' code"


def _methods(num_data: int) -> list[Row]:
    """Return the rows of methods of the network experiments; noise by the authors' code."""
    return [
        Row(
            "*-psgld-published* *-psgld-chosen *-distilled*",
            "Algorithm 1 by the authors' code",
            {
                "sampler": "SGLD", "metric": rmsprop(start=True), "freeze": False,
                "temperature": 1 / num_data,
            },
            {"temperature": _T, "metric": _START},
        ),
        Row(
            "*-psgld *-psgld-1 *-psgld-100 temperature-psgld-*",
            "Algorithm 1 at T = 1, C frozen after a fifth of the run",
            {"sampler": "PSGLD", "metric": rmsprop(), "freeze": True},
            {"freeze": "the paper's C adapts to the end: its target is another (psgld-bias.md)"},
        ),
        Row(
            "*-sgld-published *-sgld-chosen",
            "SGLD by the authors' code",
            {"sampler": "SGLD", "temperature": 1 / num_data},
            {"temperature": _T},
        ),
        Row("*-sgld", "SGLD at T = 1", {"sampler": "SGLD"}),
        Row(
            "*-rmsprop *-rmsprop-*",
            "noise-free pSGLD",
            optimized("RMSprop", alpha=0.99, eps=1e-5),
        ),
        Row("*-sgd *-sgd-averaged *-sgd-chosen *-dropout-*", "noise-free SGLD", optimized("SGD")),
        Row(
            "*-rmsspectral",
            "Carlson et al. 2015",
            optimized("RMSspectral", alpha=0.99, eps=1e-5) | {"lr": 0.00003},
            {"lr": "not given: chosen on held-out examples"},
        ),
        Row(
            "*-sghmc temperature-sghmc-*",
            "ours, beyond the paper",
            {
                "sampler": "SGHMC", "options": {"momentum": 0.99}, "prior": gaussian(0.1),
                "metric": rmsprop(eps=1e-12, floor=0.5), "freeze": True, "lr": "auto",
                "step_fraction": 0.02,
            },
        ),
    ]  # fmt: skip


_THIN = {
    "thinning": "100 in the text, 300 in the authors' code, less in short runs",
    "chains": "one run; here 3, 2 or 1 without a GPU and 10 with one",
}
_LENGTHS = dict.fromkeys(("400", "800", "1200"), (60000, 12000, 300, 3))
_LENGTHS["reduced"] = (12_000, 2_400, 300, 2)
PSGLD_MNIST = [
    *_networks(
        _LENGTHS,
        "section 'Deep neural networks', FNN: 100 epochs, L = 20, minibatches of 100, sigma^2 = 1; "
        "'reduced' is ours, 20 epochs and L = 4, for want of a GPU",
        _THIN,
    ),
    *(row for name, (steps, every, *_) in _LENGTHS.items() for row in _beyond(name, steps, every)),
    *(_averaged(name, steps, thinning) for name, (steps, _, thinning, _) in _LENGTHS.items()),
    *_methods(60_000),
    Row("*-dropout-*", "docs/psgld-mnist.md: in both hidden layers", {"dropout": 0.5}),
    Row(
        "*-rmsprop-corrected",
        "noise-free pSGLD; V starts as in the authors' code",
        optimized("Adam", betas=(0.0, 0.99), eps=1e-5),
    ),
    Row(
        "temperature-*",
        "docs/psgld-mnist.md: 20 epochs of 50,000 examples at other temperatures",
        {
            "prior": gaussian(1), "law": "reshuffled", "batch": 100, "steps": 10_000,
            "burn_in": 2_000, "thinning": 300, "chains": 2, "schedule": "ConstantStep()",
            "lr": 0.0005,
        },
    ),
    Row(
        "temperature-sghmc-*",
        "docs/psgld-mnist.md: cold chains are heated by minibatches at larger steps",
        {
            "prior": gaussian(0.1), "burn_in": 3_750, "optimizer": adam(2_500), "lr": "auto",
            "step_fraction": 0.005,
        },
    ),
    *(
        Row(f"temperature-*-{T:g}", "docs/psgld-mnist.md", {"temperature": T})
        for T in (2e-5, 0.0001, 0.001, 0.01, 0.1, 1.0)
    ),
    Row(
        "*-psgld-published* *-psgld-1 *-psgld-100 *-distilled* *-rmsprop *-rmsprop-*",
        "FNN: epsilon = 5e-4 for pSGLD and RMSprop",
        {"lr": 0.0005},
    ),
    Row("*-psgld*-100", "Table 2: sigma^2 = 100", {"prior": gaussian(100)}),
    Row(
        "*-sgld-published *-sgd *-sgd-averaged *-dropout-*",
        "FNN: epsilon = .5 for SGLD and SGD",
        {"lr": 0.5},
    ),
    Row("*-sgld", "docs/psgld-mnist.md", {"lr": 0.1}, {"lr": ".5: too hot at T = 1"}),
    Row("*-deep-ensemble", "docs/psgld-mnist.md", optimized("Adam", betas=(0.9, 0.999), eps=1e-8)
        | {"lr": 0.001}),
    Row(
        "*-bbb-*",
        "Blundell et al. 2015, which has no step that is used here",
        {
            "sampler": "BayesByBackprop", "lr": 0.001,
            "options": {
                "initial_std": 0.05,
                "optimizer": {"name": "Adam", "betas": (0.9, 0.999), "eps": 1e-8},
            },
        },
        {"lr": "not given of these columns: chosen on held-out examples"},
    ),
    Row(
        "*-bbb-mixture",
        "Blundell et al. 2015: pi, sigma_1 and sigma_2 of a grid, -log sigma in {0, 1, 2}, {6, 7, "
        "8}",
        {"lr": 0.003, "prior": "ScaleMixturePrior(pi=0.5, std1=1, std2=0.0025)"},
    ),
]  # fmt: skip

PSGLD_CNN = [
    *_networks(
        {
            "text": (12_000, 6_000, 300, 3),
            "appendix": (60_000, 12_000, 300, 3),
            "reduced": (2_400, 1_200, 75, 1),
        },
        "CNN: 20 epochs, L = 10; appendix G: 100 epochs, L = 20; ours, 'reduced': 4 epochs, L = 2",
        _THIN,
    ),
    *starmap(_after_adam, (("text", 12_000), ("appendix", 60_000), ("reduced", 2_400))),
    *starmap(
        _averaged, (("text", 12_000, 300), ("appendix", 60_000, 300), ("reduced", 2_400, 75))
    ),
    *_methods(60_000),
    Row(
        "*-psgld-published *-rmsprop *-rmsprop-averaged",
        "CNN: epsilon = {1, 2}e-3 via grid search",
        {"lr": 0.001},
        {"lr": "which of the two is not said; the smaller one"},
    ),
    Row(
        "*-psgld-chosen *-psgld",
        "docs/psgld-cnn.md: chosen on held-out examples",
        {"lr": 0.0003},
    ),
    Row("*-sgd-chosen *-sgld-chosen", "the same", {"lr": 0.2}),
    Row(
        "*-sgld-published *-sgd *-sgd-averaged *-sgld",
        "CNN: epsilon = {1, 2}e-1 via grid search",
        {"lr": 0.1},
        {"lr": "which of the two is not said; the smaller one"},
    ),
]  # fmt: skip

PSGLD_CIFAR = [
    *_networks(
        {"full": (50_000, 10_000, 300, 3), "reduced": (2_500, 500, 78, 1)},
        "appendix G: 'the same setting' as MNIST's, 100 epochs and L = 20; 'reduced' is ours",
        _THIN,
    ),
    *_methods(50_000)[:6],  # the rest does not run there

    Row("*-psgld-published *-rmsprop", "as the CNN on MNIST", {"lr": 0.001}),
    Row("*-psgld", "as the CNN on MNIST, T = 1", {"lr": 0.0003}),
    Row("*-sgld-published *-sgd", "as the CNN on MNIST", {"lr": 0.1}),
    Row("*-sgld", "docs/psgld-cnn.md: T = 1 bears less", {"lr": 0.03}),
]  # fmt: skip

# --- Ahn, Korattikara, Welling 2012 (SGFS) ------------------------------------------------------

_ALPHAS = (0.0, 1.0, 2.0, 6.0)
MNIST79 = [
    Row(
        "*",
        "section 5.1: N = 10,000, lambda = 1, n of 300 or 500",
        {
            "prior": gaussian(1), "law": "independent", "batch": 300, "burn_in": 500,
            "steps": 12_500, "chains": 32, "freeze": True,
        },
        {
            "burn_in": "3,000; here chains start in Laplace's Gaussian",
            "steps": "100,000 draws of one chain; here 384,000 of 32",
            "freeze": "not frozen",
        },
    ),
    Row(
        "sgfs_full sgfs_full_reshuffled",
        "section 5.1, Figures 1 and 2: alpha from 0 to 6, B = gamma I N",
        sgfs("full", False) | {"lr": Each(sgfs_lr(a, 10_000, 300) for a in _ALPHAS)},
        {"lr": "alpha = 0, 1, 2, 3, 4, 5, 6; here 0, 1, 2, 6"},
    ),
    Row(
        "sgfs_diagonal",
        "the same",
        sgfs("diagonal", False) | {"lr": Each(sgfs_lr(a, 10_000, 300) for a in _ALPHAS)},
        {"lr": "alpha = 0, 1, 2, 3, 4, 5, 6; here 0, 1, 2, 6"},
    ),
    Row("*_reshuffled", "ours: what minibatches of epochs do", {"law": "reshuffled"}),
    Row(
        "sgld",
        "Figure 2: epsilon from 1e-3 to 1e-6",
        {
            "sampler": "SGLD", "freeze": None,
            "lr": Each(e * 10_000 / 2 for e in (1e-3, 3e-4, 1e-4, 1e-5, 1e-6)),
        },
        {"lr": "1e-3, 5e-4, 1e-4, 5e-5, 1e-5, 5e-6, 1e-6; here 3e-4 and no fives"},
    ),
    Row(
        "hmc",
        "Figure 2: leapfrog steps 50, 40, 30, 20, 10, 1",
        hmc(Each(()), 0.8, 1.0) | {
            "freeze": None, "law": "full", "batch": 10_000, "prior": gaussian(1), "chains": 4,
            "options": Each(
                {"leapfrog_steps": s, "target_acceptance": 0.8, "jitter": 0.3}
                for s in (1, 3, 10, 30)
            ),
            "steps": Each((4_500, 1_833, 900, 700)),
        },
        {"options": "50, 40, 30, 20, 10, 1; here 1, 3, 10, 30"},
    ),
    Row(
        "reference",
        "a long HMC run",
        hmc(5, 0.95, 0.8 * 10_000)
        | {"freeze": None, "burn_in": 300, "steps": 4_300, "chains": 8},
    ),
]  # fmt: skip

_ANNEALED = (
    "section 5.2.2: a = 1, b = 1000, delta = 1; epsilon_t = a (b + t)^-delta, lr = eps N / 2"
)
SGFS_MNIST = [
    Row(
        "*",
        "section 5.2.2: minibatches of 2,000, lambda = .001 for all methods",
        {
            "prior": gaussian(1000), "batch": 2000, "burn_in": 500, "thinning": 25,
            "steps": 10_000,
        },
        {
            "steps": "not given",
            "burn_in": "not given",
        },
    ),
    Row(
        "sgd* sgld*",
        _ANNEALED,
        {
            "lr": 60_000 / 2 / 1000, "schedule": "PolynomialDecay(b=1000.0, gamma=1.0)",
            "law": "reshuffled",
        },
        {"law": "'a random mini-batch'"},
    ),
    Row("sgd*", _ANNEALED, optimized("SGD")),
    Row("sgld*", _ANNEALED, {"sampler": "SGLD"}),
    Row("*-small", "ours: the first lr divided by 30", {"lr": 1.0}),
    Row(
        "sgfs-*",
        "section 5.2.2: alpha = 2",
        {
            "lr": sgfs_lr(2.0, 60_000, 2000), "schedule": "ConstantStep()", "law": "independent",
            "freeze": False,
        },
    ),
    Row("sgfs-d*", "SGFS-d", sgfs("diagonal", False)),
    Row("sgfs-f*", "SGFS-f", sgfs("full", False)),
    Row("*-frozen", "ours", {"freeze": True}, {"freeze": "the paper's I adapts to the end"}),
]  # fmt: skip

_N = 444_619  # training rows of the 10 % file, 90 % of 494,021
KDD99 = [
    Row(
        "*",
        "section 5.3: lambda = 10, 100,000 iterations, 90/5/5",
        {"prior": gaussian(0.1), "batch": 500, "burn_in": 10_000, "thinning": 200,
         "steps": 100_000},
        {"batch": "not given here; 500 is of section 5.1", "burn_in": "not given"},
    ),
    Row(
        "sgd* sgld*",
        "section 5.3: a = .1, b = 1e5, delta = .9: epsilon_t = a (b + t)^-delta, lr = eps N / 2",
        {
            "schedule": "PolynomialDecay(b=100000.0, gamma=0.9)", "law": "reshuffled",
            "lr": 0.1 * 1e5**-0.9 * _N / 2,
        },
    ),
    Row("sgd*", "section 5.3", optimized("SGD")),
    Row("sgld*", "section 5.3", {"sampler": "SGLD"}),
    Row(
        "*-same-lr sgd-lambda1 sgld-lambda1",
        "section 5.3 with the paper's N = 4,408,587 in lr",
        {"lr": 0.1 * 1e5**-0.9 * 4_408_587 / 2},
    ),
    Row(
        "sgfs-*",
        "section 5.3: alpha = 8.95, B = gamma I N",
        sgfs("diagonal", False) | {
            "lr": sgfs_lr(8.95, _N, 500), "schedule": "ConstantStep()", "law": "independent",
            "freeze": False,
        },
    ),
    Row(
        "sgfs-f*",
        "section 5.3",
        sgfs("full", False, 1e-4),
        {"metric": "no floor; without this one the matrix is not positive definite in float32"},
    ),
    Row("*-frozen", "ours", {"freeze": True}, {"freeze": "the paper's I adapts to the end"}),
    Row(
        "sgfs-d-prior* sgfs-d-chosen* sgfs-d-best*",
        "docs/kdd99.md: the prior counted, frozen after burn-in",
        sgfs("diagonal", True) | {"freeze": True},
        {"options": "the paper's matrix has no prior: rare features have no information"},
    ),
    Row("sgfs-d-chosen*", "docs/kdd99.md: alpha = 2", {"lr": sgfs_lr(2.0, _N, 500)}),
    Row("sgfs-d-best*", "docs/kdd99.md: alpha = 1", {"lr": sgfs_lr(1.0, _N, 500)}),
    Row("*-lambda1", "docs/kdd99.md: the paper's ratio of prior to data", {"prior": gaussian(1)}),
]  # fmt: skip


def _posterior(prefix: str, rows: int, chains: int, steps: int, thinning: int) -> list[Row]:
    common = {
        "prior": gaussian(0.1), "law": "independent", "batch": 500, "burn_in": steps // 10,
        "steps": steps, "thinning": thinning, "chains": chains,
    }  # fmt: skip
    alphas, epsilons = (2.0, 3.0, 4.0, 5.0, 10.0), (5e-4, 1e-4, 5e-5, 1e-5, 5e-6)
    return [
        Row(
            f"{prefix}sgfs_full",
            "section 5.3: SGFS-f with alpha = [2, 3, 4, 5, 10]; lambda = 10",
            common | sgfs("full", True) | {
                "freeze": True, "lr": Each(sgfs_lr(a, rows, 500) for a in alphas)
            },
            {"options": "no prior counted: a shift of d has no information without one"},
        ),
        Row(
            f"{prefix}sgld",
            "section 5.3: fixed step sizes [5e-4, 1e-4, 5e-5, 1e-5, 5e-6]",
            common | {"sampler": "SGLD", "lr": Each(e * rows / 2 for e in epsilons)},
        ),
        Row(
            f"{prefix}reference",
            "section 5.3: 30 HMC runs of 4,000 samples, 1 leapfrog step, acceptance .8",
            hmc(15, 0.8, 0.3 * rows) | {
                "chains": 30, "burn_in": Each((62, 125, 250)), "steps": Each((312, 625, 1_250)),
            },
            {
                "options": "1 leapfrog step: draws stay correlated for hundreds of them",
                "steps": "4,000 draws a chain; here 1,000 of 15 steps",
            },
        ),
    ]  # fmt: skip


KDD99_POSTERIOR = [
    *_posterior("", 20_000, 4, 100_000, 20),  # ours, for a machine without hours
    *_posterior("full-", KDD_ROWS, 1, 1_000_000, 50),  # the paper's million iterations
]

# --- Marceau-Caron, Ollivier 2017 (NLD) ---------------------------------------------------------

_ETA = "which eta was chosen is not said; best accuracy on the validation set (docs/nld.md)"


def _quasi_diagonal(labels: str) -> dict[str, Any]:
    return {
        "name": "QuasiDiagonalFisher", "eps": 1e-4, "power": 0.5, "labels": labels,
        "memory": None, "floor": 0.0,
    }  # fmt: skip


NLD = [
    Row(
        "*",
        "section 'Experiments': minibatches of 100, eta halved every 10,000 updates, N(0, .1), "
        "every 100-th state after the first 500",
        {
            "prior": gaussian(0.1), "law": "reshuffled", "batch": 100, "burn_in": 500,
            "thinning": 100, "steps": 50_000, "schedule": halved(10_000),
        },
        {"steps": "not given"},
    ),
    Row(
        "sgd sgd-* dropout",
        "Table 1: SGD without regularisation, Dropout; one network",
        optimized("SGD")
        | {"prior": "FlatPrior()", "burn_in": 49_999, "thinning": 1, "lr": 0.1},
        {"lr": _ETA},
    ),
    Row("dropout", "Table 1; .5 in the authors' code", {"lr": 1.0, "dropout": 0.5}, {"lr": _ETA}),
    Row("euclidean*", "equation 2, T = 1", {"sampler": "SGLD", "lr": 0.1}, {"lr": _ETA}),
    Row(
        "rmsprop*",
        "Algorithm 2",
        {
            "sampler": "SGLD", "lr": 0.01, "freeze": False,
            "metric": rmsprop(eps=0.01),
        },
        {
            "lr": _ETA,
            "metric": "(D + eps)^-1/2, D_0 = 1, gamma_t = 1/sqrt t, eps = 1e-4; here pSGLD's "
            "(sqrt D + eps)^-1 with sqrt 1e-4 and a constant memory, as recorded",
        },
    ),
    Row(
        "dop*",
        "Algorithm 3, OP, diagonal: gamma_t = 1/sqrt t, eps = 1e-4",
        {
            "sampler": "SGLD", "lr": 0.001, "freeze": False,
            "metric": {
                "name": "DiagonalFisher", "eps": 1e-4, "power": 0.5, "floor": 0.0,
                "labels": "data", "memory": None, "centred": False,
            },
        },
        {"lr": _ETA},
    ),
    Row(
        "qdop*",
        "Algorithm 4, OP: gamma_t = 1/sqrt t, eps = 1e-4",
        {
            "sampler": "NaturalLangevin", "lr": 0.001, "freeze": False,
            "metric": _quasi_diagonal("data"),
        },
        {"lr": _ETA},
    ),
    Row(
        "sgd-averaged sgd-accurate sgd-alike",
        "ours: the mean over the iterates that samplers average, with their weights",
        {"burn_in": 500, "thinning": 100, "weights": "time"},
    ),
    Row(
        "*-alike",
        "section 2: the mean over the samples",
        {"weights": "equal"},
    ),
    *(
        Row(
            f"{name}-accurate",
            "the paper's rule, on short runs: the most accurate step of the grid (docs/nld.md)",
            {"lr": lr},
        )
        for name, lr in (("sgd", 1.0), ("euclidean", 1.0), ("dop", 0.01), ("qdop", 0.01))
    ),
    Row("euclidean-accurate", "the same: the prior variance too", {"prior": gaussian(1.0)}),
    Row("qdop-chains", "ours, beyond the paper", {"chains": 3}),
    Row("*-frozen", "ours", {"freeze": True}, {"freeze": "the paper's C adapts to the end"}),
    Row("dop-frozen", "docs/nld.md: the metric of 500 updates bears no more", {"lr": 0.0002}),
    Row(
        "rmsprop-printed",
        "Algorithm 2: (D + eps)^-1/2, D_0 = 1, gamma_t = 1/sqrt t, eps = 1e-4",
        {"metric": {"name": "DecayingRMSProp", "eps": 1e-4, "power": 0.5, "delay": 0}},
    ),
    Row(
        "qdop-sampled",
        "equation 4 and its footnote: labels drawn from the model; diverges at the step of QDOP",
        {"lr": 1e-4, "metric": _quasi_diagonal("model")},
    ),
    Row("qdop-cold", "the footnote on pSGLD's code, T = 1/N", {"temperature": 2e-5}),
    Row(
        "qdop-smooth",
        "ours, beyond the paper: a network of smooth first weights, C frozen after a fifth",
        {"freeze": True, "burn_in": 10_000, "chains": 5, "prior": gaussian(0.3)},
    ),
]  # fmt: skip

# --- Wang, Deng, Lin 2020 (HASGLD-SA) -----------------------------------------------------------

_VALID = {"paper_mode": False, "prior_in_pairs": False}  # the paper's y has the prior
_PRINTED = _VALID | {"paper_mode": True}
_M = "M, r, delta and omega are not given in section 5; r and delta are SdLBFGS's"
_SLOTS = _M + "; the paper averages, one slot is the operator of a random step"


HASGLD_GAUSSIAN = [
    Row(
        "*",
        "section 5.1: steps .02 * {1, .8, .8^2, .8^4}, burn-in 500, 30,000 samples",
        _EXACT | {
            "lr": Each(0.02 * 0.8**i for i in (0, 1, 2, 4)), "burn_in": 500, "steps": 30_500,
            "gradient_noise": 0.0,
        },
    ),
    Row(
        "*-variance",
        "section 5.1 with .12 for a variance: SGLD is unstable at every step otherwise",
        {"covariance": [[0.12, -0.95 * 0.12**0.5], [-0.95 * 0.12**0.5, 1.0]]},
        {"covariance": "sigma_x = .12"},
    ),
    Row("*-printed", "section 5.1", {"covariance": [[0.0144, -0.114], [-0.114, 1.0]]}),
    Row("sgld-*", "section 5.1", {"sampler": "SGLD", "chains": 20}),
    Row(
        "hasgld_printed-*",
        "Algorithm 2 as printed, tau = 1",
        {
            "sampler": "HASGLD", "options": _PRINTED, "metric": lbfgs(2),
            "freeze": True,  # which the printed algorithm does not do: it adapts on
        },
        {"metric": _M},
    ),
    Row(
        "hasgld-* hasgld_four-* hasgld_r001-*",
        "section 3 without the normalisation, frozen",
        {
            "sampler": "HASGLD", "options": _VALID, "metric": lbfgs(2),
            "freeze": True, "chains": 2,
        },
        {"metric": _SLOTS, "freeze": "the paper's G adapts to the end"},
    ),
    Row(
        "hasgld_four-*",
        "section 3 without the normalisation: the mean of four operators, ours above 256 weights",
        {"metric": lbfgs(2, slots=4)},
        {"metric": _M},
    ),
    Row(
        "hasgld_averaged-*",
        "section 3 without the normalisation: the average of all operators, as a matrix; frozen",
        {
            "sampler": "HASGLD", "options": _VALID, "metric": lbfgs(2, slots=None), "freeze": True,
            "chains": 20,
        },
        {"metric": _M, "freeze": "the paper's G adapts to the end"},
    ),
    Row(
        "hasgld_r001-*",
        "ours: nearly undamped, five pairs",
        {"metric": lbfgs(5, 1e-3)},
        {"metric": _SLOTS},
    ),
    Row(
        "hamcmc-*",
        "Simsekli et al. 2016 with M = 3: 2M - 2 states make M - 1 pairs",
        {
            "sampler": "HAMCMC", "metric": lbfgs(2, omega=(float("inf"), 1.0, 1.0)),
            "freeze": False, "chains": 50, "steps": 6_500,
        },
        {"steps": "30,000 draws an error: five chains of 6,000"},
    ),
    Row(
        "sghmc-*",
        "ours, beyond the paper",
        {"sampler": "SGHMC", "options": {"momentum": 0.9}, "chains": 20},
    ),
]  # fmt: skip

_SPIKE = (
    "SpikeAndSlabPrior(v0=0.1, v1=100, delta=0.5, a=1, b=None, nu=1, scale=1, omega=(5, 10, 0.9), "
    "variance=1)"
)


SPIKE_SLAB = [
    Row(
        "*",
        "section 5.2: nu = lambda = 1, v1 = 100, v0 = .1, delta = .5, a = 1, b = p, omega_k = 5 "
        "(10 + k)^-.9",
        {
            "sampler": "SGLD", "prior": _SPIKE, "law": "exact", "batch": None, "burn_in": 0,
            "thinning": 10, "steps": Each((4_000, 8_000)), "chains": 5,
        },
        {"steps": "not given", "prior": "where sigma^2 starts is not given"},
    ),
    Row(
        "sgld", "section 5.2, SGLD-SA", {"lr": 0.06},
        {"lr": "epsilon = .1 on the sum, whose limit is near .001; here 6e-4 on the sum"},
    ),
    Row(
        "hasgld?",
        "section 5.2, averaged exactly as a matrix; adapting steps take two gradients",
        {
            "lr": 0.3, "freeze": Each((False, "before")), "steps": Each((2_000, 8_000)),
            "sampler": "HASGLD", "options": _VALID, "metric": lbfgs(1, slots=None),
        },
        {"lr": ".1 of a normalised step", "freeze": "the paper's G adapts", "metric": _M},
    ),
    Row("hasgld2", "M = 2", {"metric": lbfgs(2, slots=None)}, {"metric": _M}),
    Row(
        "printed",
        "section 5.2, Algorithm 2 as printed: step .1; tau is not given",
        {
            "sampler": "HASGLD", "options": _PRINTED, "metric": lbfgs(1), "lr": 0.1,
            "temperature": 1e-4, "freeze": False, "steps": Each((2_000, 4_000) * 5), "chains": 1,
        },
        {"temperature": "1/tau is not given: chosen on validation examples"},
    ),
    Row("cold", "ours: SGLD-SA at the printed one's T", {"lr": 0.01, "temperature": 1e-4}),
]  # fmt: skip

_ADAM: dict[str, Any] = {"optimizer": adam(1440, betas=(0.9, 0.99))}
_PDE = (
    "section 5.3.1; the paper names neither noise, temperature, steps, batch, prior nor length: "
    "docs/table1.md"
)
TABLE1 = [
    Row(
        "*",
        _PDE,
        {"prior": gaussian(1), "law": "reshuffled", "batch": 64, "thinning": 18,
         "schedule": "ConstantStep()"},
    ),
    Row("*-sgld-*", "section 5.3.1", {"sampler": "SGLD", "lr": "auto"}),
    Row(
        "*-hasgld1-* *-hasgld2-*",
        "section 5.3.1: M = 1",
        {
            "sampler": "HASGLD", "options": _VALID, "metric": lbfgs(1),
            "freeze": True, "lr": 0.02,
        },
        {"metric": _SLOTS, "freeze": "the paper's G adapts to the end"},
    ),
    Row("*-hasgld2-*", "section 5.3.1: M = 2", {"metric": lbfgs(2)}, {"metric": _SLOTS}),
    Row(
        "burnin-* spe10-*",
        "docs/table1.md: 80 passes of Adam, 10 in which the metric adapts, 20 of the chain",
        {"burn_in": 1620, "steps": 1980} | _ADAM,
    ),
    Row("burnin-sgld-* spe10-*-sgld-*", "docs/table1.md",
        {"burn_in": 1440, "steps": 1800, "step_fraction": 0.02}),
    Row("random-* printed-*", "docs/table1.md: 30 passes of burn-in, 10 of sampling",
        {"burn_in": 540, "steps": 720, "lr": 0.5}),
    Row("random-sgld-*", "docs/table1.md: a step takes one gradient",
        {"burn_in": 1080, "steps": 1440, "lr": "auto", "step_fraction": 0.8}),
    Row(
        "printed-*",
        "Algorithm 2 as printed; T = 1e-6, steps falling as (1 + t/180)^-2: docs/table1.md",
        {
            "options": _PRINTED, "temperature": 1e-6, "lr": 0.1,
            "schedule": "PolynomialDecay(b=180.0, gamma=2.0)",
        },
        {"temperature": "tau is not given"},
    ),
    *(
        row
        for rate in (30, 50, 70)
        for row in (
            Row(f"*-{rate}", "Table 1: the sparse rate; by layer, done before burn-in ends",
                pruning(rate / 100, 90, 360, 18)),
            Row(f"burnin-*-{rate} spe10-*-{rate}", "docs/table1.md: while Adam runs",
                pruning(rate / 100, 180, 810, 18)),
        )
    ),
]  # fmt: skip

_FAN_IN = "FanInGaussianPrior(variance=2, bias_variance=1)"
_LANGEVIN = {
    "sampler": "SGHMC", "options": {"momentum": 0.99}, "metric": rmsprop(eps=1e-12, floor=0.5),
    "freeze": True, "lr": "auto",
}  # fmt: skip
TABLE2 = [
    Row(
        "*",
        "section 5.3.2; settings, of which the paper names none, by docs/table2.md: batches of 32, "
        "Adam for 40 passes of 38, C settles for 2, 10 are sampled",
        {
            "prior": _FAN_IN, "law": "reshuffled", "batch": 32, "thinning": 19, "burn_in": 1596,
            "steps": 1976, "schedule": "ConstantStep()",
            "optimizer": adam(1520, betas=(0.9, 0.99)),
        },
    ),
    Row("paper-* unet-*", "docs/table2.md: ours, underdamped", _LANGEVIN),
    Row("paper-*", "docs/table2.md", {"step_fraction": 0.01}),
    Row(
        "unet-*",
        "docs/table2.md: batches of 16, 75 a pass, 40 passes of Adam",
        {
            "batch": 16, "thinning": 37, "burn_in": 3150, "steps": 3900, "step_fraction": 0.005,
            "optimizer": adam(3000, betas=(0.9, 0.99)),
        },
    ),
    Row("unet-*-lognormal-*", "docs/table2.md: 100 passes of Adam",
        {"burn_in": 7650, "steps": 8400, "optimizer": adam(7500, betas=(0.9, 0.99))}),
    Row(
        "sgld-*",
        "section 5.3.2, Table 2",
        {
            "sampler": "SGLD", "metric": rmsprop(eps=1e-12, floor=0.5), "freeze": True,
            "lr": "auto", "step_fraction": 0.01,
        },
        {"metric": "none: SGLD; with this metric, frozen, the row is pSGLD, and is labelled so"},
    ),
    Row(
        "*hasgld1-* *hasgld2-*",
        "section 5.3.2, Table 2: M = 1",
        {
            "sampler": "HASGLD", "options": _VALID, "metric": lbfgs(1),
            "freeze": True, "lr": "auto", "step_fraction": 0.01,
        },
        {"metric": _SLOTS, "freeze": "the paper's G adapts to the end"},
    ),
    Row("*hasgld2-*", "Table 2: M = 2", {"metric": lbfgs(2)}, {"metric": _SLOTS}),
    *(
        Row(f"sgld-{rate} hasgld?-{rate}", "Table 2: the sparse rate, while Adam runs",
            pruning(rate / 100, 380, 1520, 38))
        for rate in (30, 50)
    ),
    Row("random-* printed-*", "docs/table2.md: as Table 1's, in passes of 38",
        {"optimizer": None, "burn_in": 1140, "steps": 1520, "lr": 0.5, "step_fraction": None}),
    Row("random-sgld-*", "docs/table2.md: a step takes one gradient; SGLD has no metric",
        {"sampler": "SGLD", "metric": USUAL["metric"], "freeze": None, "burn_in": 2280,
         "steps": 3040, "lr": "auto", "step_fraction": 0.8}),
    Row(
        "printed-*",
        "Algorithm 2 as printed; T = 1e-6, steps falling as (1 + t/380)^-2: docs/table2.md",
        {
            "options": _PRINTED, "temperature": 1e-6, "lr": 0.3,
            "schedule": "PolynomialDecay(b=380.0, gamma=2.0)",
        },
        {"temperature": "tau is not given"},
    ),
    *(
        Row(f"random-*-{rate} printed-*-{rate}", "docs/table2.md",
            pruning(rate / 100, 190, 760, 38))
        for rate in (30, 50)
    ),
]  # fmt: skip

UCI = [
    Row(
        "*",
        "docs/uci.md; the benchmark of Hernandez-Lobato and Adams 2015 gives the 20 splits and 50 "
        "hidden units alone",
        {
            "sampler": "MCLMC", "options": {"length": "auto", "target_energy_variance": 1e-4},
            "metric": {"name": "PriorMetric"}, "lr": "auto", "step_fraction": 0.5,
            "schedule": "ConstantStep()",
            "batch": 10_000, "law": "full", "burn_in": 4_000, "thinning": 48,
            "steps": 20_000, "chains": 4, "optimizer": adam(500, 0.02),
            "prior": "LayerwiseGaussianPrior({'log_noise': 9.0}, default=1, per_fan_in=True)",
        },
    ),
    Row("*-wide-*", "docs/uci.md: 200 hidden units",
        {"burn_in": 3_000, "thinning": 24, "steps": 7_000}),
]  # fmt: skip

CLASS_TABLES = [
    Row(
        "*",
        "docs/class-data.md: configs/class_table.yaml as it stands",
        {
            "sampler": "SGHMC", "options": {"momentum": 0.99}, "lr": "auto", "step_fraction": 0.25,
            "metric": rmsprop(0.99, eps=1e-12, floor=0.5), "freeze": True, "prior": gaussian(1),
            # A minibatch holds all rows of these sets, so that there is no noise to bound.
            "schedule": "ConstantStep()", "batch": 10_000, "law": "reshuffled", "burn_in": 3_000,
            "thinning": 48, "steps": 20_000, "chains": 4, "optimizer": adam(1_000, 0.01),
            "bound": 0.05, "gradients": "auto",
        },
    ),
]  # fmt: skip

_BDE = "LayerwiseGaussianPrior({'log_noise': 9.0}, default=1)"  # not by fan-in
_ADAM = {"name": "Adam", "betas": (0.9, 0.999), "eps": 1e-8}
BDE = [
    Row(
        "*-ours-?",
        "docs/bde.md, ours, chosen on rows held out of the training rows",
        {
            "sampler": "SGHMC", "lr": "auto", "metric": {"name": "PriorMetric"},
            "step_fraction": 0.25, "schedule": "ConstantStep()", "prior": _BDE, "batch": 20_000,
            "law": "reshuffled", "thinning": 100, "steps": 25_000, "chains": 6,
        },
    ),
    Row(
        "airfoil-ours-?",
        "docs/bde.md: the last layer integrated out",
        {
            "sampler": "MCLMC", "options": {"length": "auto", "target_energy_variance": 1e-3},
            "step_fraction": 0.5, "burn_in": 10_000, "steps": 22_500, "law": "full",
            "prior": "LayerwiseGaussianPrior({'log_noise': 9.0}, default=0.5)",
            "optimizer": adam(5_000, 0.01),
        },
    ),
    Row(
        "bikesharing-ours-?",
        "docs/bde.md: minibatches for Adam alone, whose gradients give the metric",
        {
            "options": {"momentum": 0.99}, "batch": 500, "burn_in": 6_060, "thinning": 20,
            "steps": 6_600, "optimizer": adam(6_000, 0.01, final=1.0),
            "metric": rmsprop(0.999, eps=4e-4), "freeze": True, "gradients": "FullGradient()",
        },
    ),
    Row(
        "*-ensemble-? *-swag-?",
        "docs/bde.md: as many gradients as ours, on airfoil a few more",
        optimized("Adam", betas=(0.9, 0.999), eps=1e-8) | {
            "prior": _BDE, "lr": 0.01, "batch": 20_000, "law": "reshuffled", "burn_in": 24_999,
            "thinning": 1, "steps": 25_000, "chains": 6,
            "schedule": "WarmupCosine(steps=25000, warmup=0.02, final=0.003)",
        },
    ),
    Row(
        "bikesharing-ensemble-?",
        "docs/bde.md: a pass of ours is 28 minibatches",
        {
            "batch": 500, "burn_in": 23_999, "steps": 24_000,
            "schedule": "WarmupCosine(steps=24000, warmup=0.02, final=0.003)",
        },
    ),
    Row(
        "*-swag-?",
        "Maddox et al. 2019, Algorithm 1: rank 20 and a constant step",
        {
            "sampler": "SWAG", "lr": 0.003, "burn_in": 24_950, "schedule": "ConstantStep()",
            "options": {
                "optimizer": _ADAM, "start": 16_650, "every": 50,
                "rank": 20,
            },
        },
        {"options": "the paper's optimizer is SGD, an iterate an epoch"},
    ),
    Row(
        "bikesharing-swag-?",
        "docs/bde.md",
        {
            "batch": 500, "burn_in": 23_950, "steps": 24_000,
            "options": {
                "optimizer": _ADAM, "start": 16_000, "every": 50,
                "rank": 20,
            },
        },
    ),
    Row(
        "*-dropout-?",
        "docs/bde.md: one network, with as many gradients as the six of ours together",
        optimized("Adam", betas=(0.9, 0.999), eps=1e-8) | {
            "prior": _BDE, "lr": 0.01, "batch": 20_000, "law": "reshuffled", "burn_in": 149_900,
            "thinning": 1, "steps": 150_000, "chains": 1, "dropout": 0.01,
            "schedule": "WarmupCosine(steps=150000, warmup=0.02, final=0.003)",
        },
    ),
    Row(
        "bikesharing-dropout-?",
        "docs/bde.md",
        {
            "batch": 500, "burn_in": 143_900, "steps": 144_000,
            "schedule": "WarmupCosine(steps=144000, warmup=0.02, final=0.003)",
        },
    ),
]  # fmt: skip

_BY_FAN_IN = "LayerwiseGaussianPrior({'log_noise': 9.0}, default=1, per_fan_in=True)"
LEADERBOARD = [
    Row(
        "*",
        "docs/leaderboard.md: four networks, 10,000 gradients of all training examples each",
        {
            "batch": 10_000, "law": "reshuffled", "chains": 4, "steps": 10_000, "burn_in": 4_000,
            "thinning": 24, "prior": _BY_FAN_IN, "schedule": "ConstantStep()",
        },
    ),
    Row("airfoil-*", "docs/leaderboard.md", {"batch": 20_000}),
    Row("digits-* connections-*", "docs/leaderboard.md: 1,000 examples, N(0, 1) on all weights",
        {"batch": 1_000, "law": "full", "prior": gaussian(1)}),
    Row("australian-*", "docs/leaderboard.md: four fifths of 690 rows, N(0, 100) on all weights",
        {"batch": 552, "law": "full", "prior": gaussian(100)}),
    Row(
        "*-sghmc-?",
        "docs/leaderboard.md: of tables the sampler of configs/uci_regression.yaml",
        {
            "sampler": "SGHMC", "options": {"momentum": 0.995}, "lr": "auto", "step_fraction": 0.1,
            "metric": {"name": "PriorMetric"}, "optimizer": adam(500, 0.02),
            # Minibatches hold all rows, so that there is no noise to bound.
            "bound": 0.05, "gradients": "auto",
        },
    ),
    Row(
        "digits-sghmc-? connections-sghmc-?",
        "docs/leaderboard.md: of classes that of configs/class_table.yaml",
        {
            "options": {"momentum": 0.99}, "metric": rmsprop(eps=1e-12, floor=0.5), "freeze": True,
            "optimizer": adam(1_000, 0.01), "bound": None, "gradients": None,
        },
    ),
    Row(
        "*-mclmc-?",
        "docs/leaderboard.md: with the start of SGHMC",
        {
            "sampler": "MCLMC", "lr": "auto", "metric": {"name": "PriorMetric"}, "law": "full",
            "step_fraction": 0.5,
            "options": {"length": "auto", "target_energy_variance": 1e-4},
            "optimizer": adam(500, 0.02),
        },
    ),
    Row("digits-mclmc-? connections-mclmc-?", "configs/class_table.yaml, where the step starts",
        {"optimizer": adam(1_000, 0.01), "step_fraction": 0.25}),
    Row(
        "*-hmc-?",
        "docs/leaderboard.md: the reference",
        {
            "sampler": "HMC", "lr": "auto", "metric": {"name": "PriorMetric"}, "law": "full",
            "options": {"leapfrog_steps": 50, "target_acceptance": 0.8, "jitter": 0.3},
            "burn_in": 1_200, "thinning": 10, "steps": 2_200, "step_fraction": 0.25,
            "optimizer": adam(1_000, 0.01),
        },
    ),
    Row("australian-sghmc-?", "all rows at every step", {"bound": None, "gradients": None}),
    Row("australian-sghmc-? australian-mclmc-? australian-hmc-?", "configs/australian.yaml: from 0",
        {"optimizer": None}),
    Row("australian-mclmc-? australian-hmc-?", "the module's own, where the step starts",
        {"step_fraction": "auto"}),
    Row(
        "*-ensemble-? *-dropout-?",
        "docs/leaderboard.md: Adam along a cosine, under the same prior",
        optimized("Adam", betas=(0.9, 0.999), eps=1e-8) | {
            "lr": 0.03, "burn_in": 9_999, "thinning": 1,
            "schedule": "WarmupCosine(steps=10000, warmup=0.02, final=0.003)",
        },
    ),
    Row(
        "*-swag-?",
        "Maddox et al. 2019, Algorithm 1: rank 20 and a constant step",
        optimized("Adam", betas=(0.9, 0.999), eps=1e-8) | {
            "sampler": "SWAG", "lr": 0.003, "burn_in": 9_950, "thinning": 1,
            "options": {"optimizer": _ADAM, "start": 6_700, "every": 50, "rank": 20},
        },
        {"options": "the paper's optimizer is SGD, an iterate an epoch"},
    ),
    Row(
        "*-dropout-?",
        "docs/leaderboard.md: one network, with as many gradients as the four together",
        {
            "lr": 0.01, "burn_in": 39_900, "steps": 40_000, "chains": 1, "dropout": 0.05,
            "schedule": "WarmupCosine(steps=40000, warmup=0.02, final=0.003)",
        },
    ),
]  # fmt: skip

# --- The papers' theorems -----------------------------------------------------------------------


def decay(beta: float) -> str:
    """Return steps a t^-beta."""
    return f"PolynomialDecay(b=1, gamma={beta:.3g})"


_BETAS = {"0": 0.0, "0.2": 0.2, "0.33": 1 / 3, "0.5": 0.5, "0.67": 2 / 3}
_OURS = "the paper states a theorem and measures nothing"


def _newest(
    memory: int, omega: tuple[float, float, float] = (1.0, 1.0, 0.0), r: float = 0.25
) -> Any:
    return lbfgs(memory, r, omega, slots=None)


THEORY = [
    Row(
        "psgld-* adapting-*",
        "pSGLD, Theorem 1: decreasing steps, weights equal to them; target as in Figure 1",
        _EXACT | {
            "sampler": "PSGLD", "metric": rmsprop(0.99, 1e-4), "freeze": True, "lr": 0.6,
            "schedule": decay(1 / 3), "covariance": [[0.16, 0.0], [0.0, 1.0]],
            "gradient_noise": 0.5, "burn_in": 1_000, "steps": 1_000 + 2**14, "chains": 500,
        },
        {"lr": _OURS, "gradient_noise": _OURS, "freeze": "the paper's C adapts to the end"},
    ),
    *(Row(f"psgld-{name}", "Theorem 1", {"schedule": decay(beta), "chains": 2_000})
        for name, beta in _BETAS.items()),
    Row("psgld-0.5 psgld-0.67", "ours", {"lr": 0.15}, {"lr": _OURS}),
    Row("adapting-*", "Algorithm 1: no Gamma, Corollary 2", {"freeze": False}),
    *(Row(f"adapting-{alpha:g}", "Corollary 2", {"metric": rmsprop(alpha, 1e-4)})
        for alpha in (0.9, 0.999)),
    Row(
        "adapting-0.99-gamma", "Theorem 1, with Gamma",
        {"metric": rmsprop(0.99, 1e-4) | {"gamma_probes": 0}, "steps": 1_000 + 2**11},
    ),
    *(Row(
        f"nld-{name}",
        "NLD, section 1: eta_k ~ k^(-1/3); Algorithm 3, DOP: eps = 1e-4, gamma_t = 1/sqrt t",
        _EXACT | {
            "sampler": "SGLD", "freeze": True, "lr": 0.3, "schedule": decay(beta),
            "metric": {
                "name": "DiagonalFisher", "labels": "data", "eps": 1e-4, "floor": 0.0,
                "power": 0.5, "memory": None, "centred": False,
            },
            "batch": 10, "law": "independent", "burn_in": 1_000, "steps": 1_000 + 2**14,
            "chains": 500,
        },
        {"lr": _OURS, "freeze": "the paper's C adapts to the end"},
    ) for name, beta in _BETAS.items() if beta),
    Row("nld-0.5 nld-0.67", "ours", {"lr": 0.15}, {"lr": _OURS}),
    *(Row(
        f"rate-{power:g}",
        "HASGLD-SA, Theorem 1: omega_k = c1 (k + c2)^-power; two sets of 200 chains",
        _EXACT | {
            "sampler": "HASGLD", "options": _VALID, "metric": _newest(2, (5.0, 10.0, power)),
            "freeze": False, "lr": 0.1, "batch": 20, "law": "independent", "burn_in": 0,
            "steps": 2**11, "chains": 400,
        },
        {"lr": _OURS, "batch": _OURS},
    ) for power in (0.6, 0.75, 0.9)),
    Row(
        "bias-*",
        "HASGLD-SA, Theorem 2: the bias over n, M, omega and epsilon",
        _EXACT | {
            "sampler": "HASGLD", "options": _VALID, "metric": _newest(2), "freeze": False,
            "lr": 0.1, "batch": 200, "law": "full", "burn_in": 300, "steps": 2_000, "chains": 200,
        },
        {"lr": _OURS, "batch": _OURS},
    ),
    *(Row(f"bias-omega-{w:g}", "Theorem 2", {"metric": _newest(2, (w, 1.0, 0.0))})
        for w in (0.6, 0.3, 0.1)),
    Row("bias-*-decaying", "Theorem 2", {"metric": _newest(2, (5.0, 10.0, 0.9))}),
    *(Row(f"bias-eps-{e:g}", "Theorem 2", {"lr": e}) for e in (0.4, 0.2, 0.05)),
    *(Row(f"bias-memory-{m}", "Theorem 2", {"metric": _newest(m)}) for m in (1, 4)),
    Row("bias-memory-1-decaying", "Theorem 2", {"metric": _newest(1, (5.0, 10.0, 0.9))}),
    *(Row(f"bias-n-{n} bias-n-{n}-*", "Theorem 2", {"batch": n, "law": "independent"})
        for n in (50, 20)),
    *(Row(
        f"eigenvalues-{m}-{r:g}", "HASGLD-SA, Lemma 2",
        _EXACT | {
            "sampler": "HASGLD", "options": _VALID, "metric": _newest(m, r=r), "freeze": False,
            "lr": 0.1, "batch": 200, "law": "full", "burn_in": 0, "steps": 300, "chains": 20,
        },
        {"lr": _OURS},
    ) for m in (1, 2, 5) for r in (0.25, 0.001)),
    Row(
        "scores-*",
        "SGFS, Theorem 1: V of minibatches at draws of the posterior, averaged with 1/t",
        _EXACT | sgfs("full", False) | {
            "freeze": False, "lr": sgfs_lr(2.0, 32, 16),
            "batch": Each((16, 32, 64, 128)), "law": "independent", "burn_in": 0, "steps": 150,
            "chains": 2_000,
        },
        {"lr": _OURS, "batch": _OURS},
    ),
]  # fmt: skip

#: By the names of ``scripts/reproduce.py``.
FNO_DARCY = [
    Row(
        "*",
        "docs/darcy-pressure.md: ours, underdamped; batches of 16",
        _LANGEVIN | {
            "prior": _FAN_IN, "law": "reshuffled", "batch": 16, "schedule": "ConstantStep()",
            "step_fraction": 0.005,
        },
    ),
    Row("*-1000", "docs/darcy-pressure.md: 500 steps a pass, 40 passes of Adam, 2 and 10 after it",
        {"thinning": 250, "burn_in": 21_000, "steps": 26_000,
         "optimizer": adam(20_000, betas=(0.9, 0.99))}),
    Row("*-100", "docs/darcy-pressure.md: 50 steps a pass, 200 passes of Adam, 10 and 50 after it",
        {"thinning": 125, "burn_in": 10_500, "steps": 13_000,
         "optimizer": adam(10_000, betas=(0.9, 0.99))}),
]  # fmt: skip

# --- Izmailov, Vikram, Hoffman, Wilson 2021 (HMC on CIFAR-10) -----------------------------------

CIFAR10_HMC = [
    Row(
        "*",
        "Table 3: prior variance 1/5, batches of 80, T = 1, 40,960 images",
        {"prior": gaussian(0.2), "batch": 80, "law": "reshuffled", "schedule": "ConstantStep()"},
    ),
    Row(
        "reduced-*",
        "ours: 12 passes of 512 steps, half of them burn-in",
        {"burn_in": 3_072, "thinning": 128, "steps": 6_144},
        {"steps": "10,000 passes, 1,000 of them burn-in"},
    ),
    Row(
        "full-*",
        "ours: 1,200 passes; a tenth is burn-in and a draw every ten, as in the paper",
        {"burn_in": 61_440, "thinning": 5_120, "steps": 614_400},
        {"steps": "10,000 passes, 1,000 of them burn-in"},
    ),
    Row("*-sgld", "Table 3: 1e-6 on the sum", {"sampler": "SGLD", "lr": 1e-6 * 40_960}),
    Row("*-sghmc", "the published code: 3e-7, momentum .9",
        {"sampler": "SGHMC", "lr": 3e-7 * 40_960 * 1.9 / 2, "options": {"momentum": 0.9}}),
    Row("*-cyclical", "the published code: 3e-7, momentum .95, a draw where a cycle ends",
        {"sampler": "SGHMC", "lr": 3e-7 * 40_960 * 1.95 / 2, "options": {"momentum": 0.95}}),
    Row("reduced-cyclical", "ours: 4 cycles of 3 passes, the first of them burn-in",
        {"schedule": "CyclicalCosine(cycle=1536, sampling=0.1, floor=0.01)",
         "burn_in": 1_536, "thinning": 1_536},
        {"schedule": "cycles of 50 passes"}),
    Row("full-cyclical", "the published code: cycles of 50 passes",
        {"schedule": "CyclicalCosine(cycle=25600, sampling=0.1, floor=0.01)",
         "burn_in": 76_800, "thinning": 25_600}),
    Row(
        "*-ensemble",
        "Table 3: SGD from 3e-7 along a cosine, momentum .9, weight decay 10",
        optimized("SGD", momentum=0.9) | {
            "lr": 3e-7 * 40_960, "prior": gaussian(0.1), "thinning": 1,
        },
    ),
    Row("reduced-ensemble", "ours: three networks of 4 passes each",
        {"chains": 3, "steps": 2_048, "burn_in": 2_047,
         "schedule": "WarmupCosine(steps=2048, warmup=0.02, final=0.003)"},
        {"chains": "50 of 500 passes each"}),
    Row("full-ensemble", "ours: four networks of 300 passes each",
        {"chains": 4, "steps": 153_600, "burn_in": 153_599,
         "schedule": "WarmupCosine(steps=153600, warmup=0.02, final=0.003)"},
        {"chains": "50 of 500 passes each"}),
    Row(
        "*-ours",
        "docs/cifar10-hmc.md: two passes of Adam, a tenth of the largest stable step",
        {
            "sampler": "SGHMC", "options": {"momentum": 0.95}, "lr": "auto", "step_fraction": 0.1,
            "metric": rmsprop(eps=1e-12, floor=0.5), "freeze": True, "optimizer": adam(1_024),
        },
    ),
]  # fmt: skip

PROTOCOLS: dict[str, list[Row]] = {
    "cifar10_hmc": CIFAR10_HMC,
    "a9a": A9A,
    "australian": AUSTRALIAN,
    "fno_darcy": FNO_DARCY,
    "hasgld_gaussian": HASGLD_GAUSSIAN,
    "kdd99": KDD99,
    "kdd99_posterior": KDD99_POSTERIOR,
    "mnist79": MNIST79,
    "nld": NLD,
    "psgld_cifar": PSGLD_CIFAR,
    "psgld_cnn": PSGLD_CNN,
    "psgld_gaussian": PSGLD_GAUSSIAN,
    "psgld_mnist": PSGLD_MNIST,
    "sgfs_mnist": SGFS_MNIST,
    "spike_slab": SPIKE_SLAB,
    "table1": TABLE1,
    "table2": TABLE2,
    "theory": THEORY,
    "uci": UCI,
    "class_tables": CLASS_TABLES,
    "bde": BDE,
    "leaderboard": LEADERBOARD,
}

#: Cells without a chain of their own: closed forms, regressions, and what reads other runs.
WITHOUT_A_CHAIN = (
    "laplace* *-laplace-? *-agreement-? *-sklearn-? references references-* shift-* bounds outside "
    "*-mc-dropout *-distilled *-apart cost memory pruned"
)
