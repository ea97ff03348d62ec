"""pSGLD's convolutional networks on MNIST (Li et al. 2016): Tables 3 and 4, Figures 5 and 8.

Cells, ``COLUMN-METHOD``:

- ``text`` is the network 32-64, 200-200 for the paper's 20 epochs;
- ``appendix`` the network 32-64, 500 for the paper's 100 epochs;
- ``reduced`` the former for 4 epochs, for a machine without a GPU.

``*-published`` follow the authors' code, whose noise is that of the temperature 1/N, and so does
``psgld-chosen``; ``psgld`` and ``sgld`` sample the posterior. ``*-chosen`` have the step that is
best on held-out examples, where it is not that of the method's first row.
"""

from functools import partial

from tasks.experiments.experiment import Experiment
from tasks.experiments.psgld import figures, report
from tasks.experiments.psgld.networks import Networks
from tasks.experiments.sheet import sheet

NETWORKS = Networks(sheet("psgld_cnn"), "an hour or more each, half a day of the appendix's,")
EXPERIMENT = Experiment(
    NETWORKS.cells,
    partial(report.report, NETWORKS),
    report.choices(NETWORKS, NETWORKS.trials),
    NETWORKS.left_out,
    partial(figures.figures, NETWORKS),  # Figures 5 and 8
)
