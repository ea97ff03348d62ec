"""pSGLD's network on CIFAR-10 (Li et al. 2016): Figure 9, learning curves without augmentation.

Cells, ``COLUMN-METHOD``: ``full`` for 100 epochs, ``reduced`` for 5, for a machine without a GPU.
"We keep the same setting" as for MNIST is all that the paper says of steps and length; there they
are those of the appendix. ``*-published`` follow the authors' code, whose noise is that of the
temperature 1/N; ``psgld`` and ``sgld`` sample the posterior.
"""

from functools import partial

from tasks.experiments.experiment import Experiment
from tasks.experiments.psgld import figures, report
from tasks.experiments.psgld.networks import Networks
from tasks.experiments.sheet import sheet

NETWORKS = Networks(sheet("psgld_cifar"), "about half a day each")
EXPERIMENT = Experiment(
    NETWORKS.cells,
    partial(report.report, NETWORKS),
    left_out=NETWORKS.left_out,
    figures=partial(figures.figures, NETWORKS),  # Figure 9
)
