"""A discriminative RBM on KDD Cup 99 (Ahn, Korattikara and Welling 2012, section 5.3, Table 1).

The published settings are alpha = 8.95 for SGFS and epsilon_t = .1 (1e5 + t)^-.9 for SGD and SGLD,
100,000 iterations, lambda = 10. epsilon acts on the sum over N examples, as in the paper's eq. 1:
lr = epsilon N / 2 for all. With N ten times smaller than in the paper, on the 10 % file, the same
epsilon is a ten times smaller lr; the row ``same lr`` has the paper's lr instead.

The paper's SGFS adapts its Fisher matrix until the end. It also runs here with the matrix frozen
where burn-in ends, from which point the chain has one target. ``sgfs-d-prior`` and
``sgfs-d-chosen``, which are frozen too, count the prior's precision in the matrix. Weights of rare
features have almost no Fisher information: without the prior, steps along them have no bound, and
chains diverge. ``sgfs-d-chosen`` has the alpha that was best on the validation rows in short runs.

lambda = 10 weighs ten times as much against the 10 % file's rows as against the paper's. The runs
``*-lambda1`` have the paper's ratio of the two, ``sgfs-d-best-lambda1`` the alpha that is best
there.
"""

from tasks.experiments.experiment import Experiment
from tasks.experiments.sheet import sheet

SHEET = sheet("kdd99")
EXPERIMENT = Experiment(SHEET.runs, [SHEET.intro, SHEET.table()], SHEET.choices())
