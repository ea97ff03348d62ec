"""How the commands and snippets of README and docs are run in a test, and what they need."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Commands that are not run, by how they begin.
NOT_RUN = {
    "python3 -m venv": "makes an environment from the net; .ci/run runs README's own line",
    ".venv/bin/python -m pip": "as above",
    ".venv/bin/python -m pytest": "as above",
    ".venv/bin/sgmcmc": "the same command stands without the environment below it",
    "python -m pip": "changes the environment that the tests run in",
    ".venv/bin/ruff": ".ci/run runs it",
    ".venv/bin/mypy": ".ci/run runs it",
    "wandb ": "needs W&B's server, or is tested in tests/lightning_sgmcmc/run/test_wandb_run.py",
    "sgmcmc generate fields": "needs a file of fields: tests/tasks/test_subsurface_page.py",
    "python scripts/write_tables.py": "writes into docs; tests/tasks/test_pages.py holds them",
}
#: Pages that a test of their own runs.
OWN_TESTS = {
    "docs/adapters.md": "tests/test_adapters_page.py",
    "docs/subsurface.md": "tests/tasks/test_subsurface_page.py",
}
FEW = [
    "--model.burn_in_optimizer.steps=6", "--model.burn_in=8", "--model.thinning=2",
    "--trainer.max_steps=20",
]  # fmt: skip
QUIET = ["--wandb_project=null", "--trainer.enable_progress_bar=false"]
#: Commands that run to their end, and how they are made short. Of other runs of tasks and
#: experiments everything is built, up to the first step: their data are not here, or take long.
SHORT = {
    "--task uci_regression --data.file=my.csv --data.target=price": FEW,
    "--task class_table --data.file=my.csv --data.target=kind": FEW,
    "--model my_module.MyTask": ["--model.burn_in=20", "--trainer.max_steps=60"],
    "--out RUN_FOLDER --ckpt_path last": ["--trainer.max_steps=24"],
    "--finish RUN_FOLDER": [],
    "tune ": ["--trials=0"],
    "generate ": ["--samples=8", "--workers=1"],
    "--print_config": [],
    "--help": [],
    "--list": [],
    "--show": [],
}
#: What stands for a word of a page that its reader replaces.
REST = {
    "--data my_module.MyData ...": "--data my_module.MyData --model.sampler=PSGLD "
    "--model.sampler.lr=auto --model.sampler.prior=GaussianPrior --model.thinning=10",
    "train ... --until": "train --task pde_source --until",
    "reproduce NAME": "reproduce table1",
    "tune my.yaml": "tune class_table --data.file=my.csv --out other",
    "--out FILE": "--out file.safetensors",
    "--trainer.devices=1 --model.num_chains=4": "--trainer.devices=1 --model.num_chains=1",
}
#: The run that a part of a YAML file is of.
YAML = {
    "docs/prediction.md": "--task mnist",
    "docs/samplers.md": "--task uci_regression --data.name yacht",
}
#: Files that a page asks its reader to write, by a phrase of them.
FILES = {
    "class MyNet": "my_net.py",
    "class MyData": "my_module.py",
    "class Channels(": "channels.py",
}


@dataclass(frozen=True)
class Snippet:
    """What a snippet takes for granted, and how it is made short."""

    before: str = ""
    replace: dict[str, str] = field(default_factory=dict)
    after: str = ""


TABLE_ROWS = "x, y = torch.randn(5, 4), torch.randn(5, 1)"
SNIPPETS = {
    ("README.md", 'load_posterior("runs/pde_source/...")'): Snippet(
        "sources = torch.rand(2, 60, 60)", {'"runs/pde_source/..."': 'run_of("pde_source")'}
    ),
    ("README.md", "class MyTask"): Snippet(
        "net, data = nn.Linear(2, 2), own_data()",
        {"burn_in=300, thinning=100": "burn_in=10, thinning=5", "max_steps=3000": "max_steps=30"},
    ),
    ("docs/lightning.md", "trainer.predict"): Snippet(
        "from functools import partial\n"
        "import lightning as L\n"
        "from lightning_sgmcmc import PSGLD, Categorical, GaussianPrior, Posterior, SGMCMCModule\n"
        "class MyTask(SGMCMCModule):\n"
        "    def law(self, x):\n"
        "        return Categorical(self(x))\n"
        "net, data = nn.Linear(2, 2), own_data()\n"
        "data.val_dataloader = data.test_dataloader; loader = data.test_dataloader()",
        {"burn_in=300, thinning=100": "burn_in=10, thinning=5", "max_steps=3000": "max_steps=30"},
    ),
    ("docs/baselines.md", "mc_dropout_predictions"): Snippet(
        "from lightning_sgmcmc import load_posterior\n"
        "from lightning_sgmcmc.baselines import mc_dropout_predictions\n"
        f"{TABLE_ROWS}; batch = x, y; run_folder = run_of('dropout')",
        {"num=100": "num=5"},
    ),
    ("docs/diagnostics.md", "to_arviz"): Snippet(
        f"{TABLE_ROWS}; batch = x, y", {'"runs/<task>/<name>"': 'run_of("uci_regression")'}
    ),
    ("docs/prediction.md", "for weights, outputs"): Snippet(
        TABLE_ROWS, {'"runs/TASK/NAME"': 'run_of("uci_regression")'}
    ),
    ("docs/prediction.md", "for task in draws"): Snippet(
        "",
        {'"runs/pde_source/..."': 'run_of("pde_source")'},
        "assert abs(float(draws.weights.sum()) - 1) < 1e-9 and len(draws.weights) == len(draws)",
    ),
    ("docs/prediction.md", "cell_velocity"): Snippet(
        "import numpy as np, pde\n"
        "posterior = load_posterior(run_of('pde_source'))\n"
        "grid, source, kappa = pde.Grid(60, 60), torch.rand(60, 60), np.ones((60, 60))",
        {"sample(200)": "sample(5)"},
    ),
    ("docs/prediction.md", "of_labels"): Snippet(
        "from lightning_sgmcmc.metrics import entropy\n"
        "posterior = load_posterior(run_of('class_table'))\n"
        "x, y = torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0])",
        after="assert (of_weights > -1e-6).all()",
    ),
    ("docs/prediction.md", "import Conformal"): Snippet(
        "posterior = load_posterior(run_of('uci_regression'))\n"
        "x, x_calibration, y_calibration = (torch.randn(30, n) for n in (4, 4, 1))",
        after="assert (upper > lower).all()",
    ),
    ("docs/prediction.md", "module.difficulty("): Snippet(
        "import numpy as np, pde\n"
        "posterior = load_posterior(run_of('pde_perm'))\n"
        "fields = pde.PermeabilityDataSpec(nx=8, ny=8, terms=6).fields\n"
        "drawn = np.stack([fields.sample(2 * (i % 6) + 1) for i in range(30)])\n"
        "x = torch.from_numpy(drawn).float()\n"
        "x_calibration, y_calibration = x, torch.rand(30, 144)",
        after="assert (upper > lower).all()\n"
        "posterior = load_posterior(run_of('class_table'))\n"
        "x, y = torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0])",
    ),
    ("docs/prediction.md", "save_mean_network"): Snippet(
        "import safetensors.torch\n"
        "from tasks.nets.mlp import MLP\n"
        "net = MLP(inputs=4, hidden=[50], outputs=2)"
    ),
    ("docs/prediction.md", "distill("): Snippet(
        "student, x_train, y_train = nn.Linear(4, 2), x, y", {"20_000": "5", "=10)": "=2)"}
    ),
    ("docs/own-task.md", "class Poisson"): Snippet("from lightning_sgmcmc import BatchStream, Law"),
    ("docs/own-task.md", "def train_dataloader(self):\n    return"): Snippet(
        "x, y = torch.randn(200, 2), torch.zeros(200)", after="next(iter(train_dataloader(None)))"
    ),
    ("docs/own-task.md", "mean_and_std"): Snippet(
        "import numpy as np\nnp.save('x.npy', np.eye(200, 2)), np.save('y.npy', np.ones(200))",
        after="train_dataloader(None).at(0)",
    ),
    ("docs/gallery.md", "601"): Snippet(replace={"601": "101"}),
    ("docs/darcy.md", "class Channels"): Snippet(
        after="import channels, pde\n"
        "pde.generate(channels.ChannelSpec(num_samples=3), 'channels.safetensors', workers=1)\n"
        "assert pde.load('channels.safetensors').velocity.shape[0] == 3"
    ),
    ("docs/spike-slab.md", "bind_residuals"): Snippet(
        "from lightning_sgmcmc import SGLD, SpikeAndSlabPrior\n"
        "net, N, sum_of_squared_residuals = nn.Linear(3, 1), 100, 10.0"
    ),
    ("docs/uci.md", "load_posterior"): Snippet(
        "x = torch.randn(5, 4)", {'"runs/uci_regression/..."': 'run_of("uci_regression")'}
    ),
    ("docs/uci.md", "BayesianMLPRegressor"): Snippet(
        "import warnings\n"
        "from sklearn.exceptions import ConvergenceWarning\n"
        "warnings.simplefilter('ignore', ConvergenceWarning)  # of two draws\n"
        "X, y = torch.randn(40, 3).numpy(), torch.randn(40).numpy()\nX_new, labels = X[:5], y > 0",
        {"random_state=0": "random_state=0, optimizer_steps=10, burn_in=20, steps=30, thinning=5"},
        after="assert ((lower < mean) & (mean < upper)).all() and (std > 0).all()",
    ),
    ("docs/class-data.md", "'mine.csv'"): Snippet(
        replace={"mine.csv": "my.csv", "diagnosis": "kind"}
    ),
    ("docs/class-data.md", "class_table/..."): Snippet(
        replace={'"runs/class_table/..."': 'run_of("class_table")'},
        after="assert x.shape == (2, 4)",
    ),
    ("docs/class-data.md", "'hhp.csv'"): Snippet(replace={"hhp.csv": "my.csv", "days": "kind"}),
}

#: Pages whose RUN_FOLDER is not a run of ``pde_source``.
RUN_FOLDERS = {"docs/class-data.md": "class_table", "docs/uci.md": "uci_regression"}
#: The runs that snippets load: the command, without its data.
RUNS = {
    "pde_source": [
        "--task=pde_source", "--data.num_samples=20", "--model.sampler.lr=1e-6",
    ],
    "pde_perm": [
        "--task=pde_perm", "--data.num_samples=20", "--data.num_test=4", "--data.num_val=4",
        "--data.num_calibration=9", "--data.batch_size=4", "--data.grid=8", "--data.terms=6",
        "--model.net.hidden=8",
    ],
    "uci_regression": ["--task=uci_regression", "--data.target=price"],
    "class_table": ["--task=class_table", "--data.target=kind"],
    "dropout": [
        "--task=uci_regression", "--data.target=price", "--model.net=tests.test_docs.Dropped",
        "--model.sampler=lightning_sgmcmc.baselines.Optimized", "--model.sampler.lr=1e-3",
        "--model.sampler.optimizer=torch.optim.Adam", "--model.num_chains=1",
        "--model.noise=0.3", "--model.sampler.prior=FlatPrior",
    ],
}  # fmt: skip
