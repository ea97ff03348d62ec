"""The short help of a run; ``--help.all`` is the parser's own, with every option of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

TITLE = "Draw the weights of a network from their posterior, and predict with the draws."
_TEXT = """\
usage: sgmcmc train --task NAME [--option=value ...]

{title}

  sgmcmc train --task pde_source                          a task as its file states it
  sgmcmc train --task mnist --model.sampler=SGLD --seed_everything=1
  sgmcmc train --model mine.MyTask --data mine.MyData --model.sampler=PSGLD --trainer.max_steps=2000

tasks:
{tasks}

run:
  --task NAME, --config FILE         a task's file, or one of your own; what follows overrides it
  --out DIR                          folder of the run (default: runs/NAME/SAMPLER-seedN-TIME)
  --out DIR --ckpt_path last         continue a run that was stopped, to the bit
  --finish DIR                       its results, table and figures again
  --seed_everything N                seed of the weights and of the chain
  --until sampled --max_time M       follow the remedies of the alarms, at most M minutes
  --checkpoint_every N               steps between checkpoints
  --wandb_project NAME               in Weights & Biases; null for none
  --print_config                     every field there is, with its value; nothing is run

model:
  --model CLASS                      says the law of the targets; yours as module.Class
  --model.net CLASS                  its network
  --model.burn_in N                  steps before the first draw
  --model.thinning N                 steps between draws
  --model.num_chains K               chains as one computation
  --model.draw_budget N              draws of a chain on disk
  --model.help CLASS                 all options of a model

sampler:
  --model.sampler NAME               SGLD, PSGLD, SGHMC, SGNHT, SGFS, HMC, ...
  --model.sampler.lr X               step size; auto measures it
  --model.sampler.temperature X      1 samples the posterior
  --model.sampler.prior NAME         GaussianPrior, FanInGaussianPrior, LaplacePrior, ...
  --model.sampler.preconditioner NAME
                                     RMSProp, DiagonalFisher, ...
  --model.sampler.help NAME          all options of a sampler

data:
  --data CLASS                       a LightningDataModule; yours as module.Class
  --data.NAME X                      an option of it; a task's file names them
  --data.help CLASS                  all of them

trainer:
  --trainer.max_steps N              steps, burn-in included
  --trainer.accelerator NAME         cpu, gpu, auto
  --trainer.devices N                processes; with --trainer.strategy=ddp
  --trainer.enable_progress_bar false

'sgmcmc train --help.all' lists every option. README.md and docs/ say what the numbers mean.
"""


def text(configs: Path) -> str:
    """Return the short help.

    Args:
        configs: Folder of the tasks' YAML files.
    """
    tasks = [
        fill(
            _about(configs / f"{name}.yaml"),
            100,
            initial_indent=f"  {name:<20}",
            subsequent_indent=" " * 22,
        )
        for name in names(configs)
    ]
    return _TEXT.format(title=TITLE, tasks="\n".join(tasks))


def names(configs: Path) -> list[str]:
    """Return the names of the tasks in a folder of YAML files."""
    return sorted(path.stem for path in configs.glob("*.yaml"))


def unknown_task(configs: Path, arguments: Sequence[str]) -> str | None:
    """Return what is wrong where a command line names a task that there is not.

    Args:
        configs: Folder of the tasks' YAML files.
        arguments: The command line without the program's name.
    """
    known = names(configs)
    for i, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--task" and (equals or i + 1 < len(arguments)):
            name = value if equals else arguments[i + 1]
            if name not in known:
                return f"unknown task {name!r}: choose one of {', '.join(known)}"
    return None


def _about(path: Path) -> str:
    """Return the first sentence of a task's file, which is its first comment."""
    with path.open() as file:
        return file.readline().lstrip("# ").strip()
