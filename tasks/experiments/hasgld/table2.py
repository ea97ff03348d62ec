"""Table 2 of HASGLD-SA (section 5.3.2): velocities from the permeability.

Cells, each a run or a computation of its own:

- ``references-KIND-P``: regressions and solvers without a network (table2_references).
- ``NET-FORM-KIND-P``: the paper's network or a U-Net on P modes, sampled at T = 1 by underdamped
  Langevin dynamics. FORM says what stands around the network (:class:`~tasks.nets.flow.FlowNet`):
  ``plain`` nothing, as in the paper; ``conservative`` the projection onto flows that balance;
  ``physics`` that, Darcy's law and the symmetry; ``profile`` all of it, with the noise's profile
  over the edges from the held-out residuals.
- ``METHOD-RATE``, ``random-METHOD-RATE`` and ``printed-METHOD-RATE``: the paper's own cells, its
  network and form, its three methods and sparse rates, on additive fields of 64 modes. As in Table
  1 they start where Adam ended, or at random weights, there also by Algorithm 2 as printed.
- ``shift-KIND``: the U-Net of 64 modes on fields of other kinds than it was trained on
  (table2_shift).
- ``bounds``: the guaranteed bound of a flow's error, without a network (table2_bounds).
- ``outside``: which fields of other kinds are called outside the training law, likewise
  (table2_outside).

sigma is estimated on 100 of the 1,300 training fields, which are held out; no other choice depends
on them. From random weights it is 1 % of the flow's size. Settings were chosen on 200 held-out
training fields.
"""

from __future__ import annotations

from functools import partial

from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.hasgld.table2_bounds import bounds
from tasks.experiments.hasgld.table2_outside import outside
from tasks.experiments.hasgld.table2_references import references
from tasks.experiments.hasgld.table2_report import KINDS, SHEET, TERMS, figures, report
from tasks.experiments.hasgld.table2_shift import panel


def cells() -> list[Cell | Study]:
    """Return the references, the runs, the studies without a chain."""
    return [
        *(
            Study(f"references-{kind}-{terms}", partial(references, kind=kind, terms=terms))
            for kind in KINDS
            for terms in TERMS
        ),
        *SHEET.runs(),
        *(Study(f"shift-{kind}", partial(panel, kind=kind)) for kind in KINDS),
        Study("bounds", bounds),
        Study("outside", outside),
    ]


EXPERIMENT = Experiment(cells, report, SHEET.choices(), figures=figures)
