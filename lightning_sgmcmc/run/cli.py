"""The command line: ``--task NAME``, overrides by dotted names, one folder a run."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NoReturn

import jsonargparse
import lightning as L
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from lightning_sgmcmc.callbacks import ChainCheckpoint, ChainProgress
from lightning_sgmcmc.callbacks.finish import Finish, NoStep
from lightning_sgmcmc.callbacks.log import CSVLog
from lightning_sgmcmc.callbacks.requeue import requeue
from lightning_sgmcmc.callbacks.settings import refuse_biasing_settings
from lightning_sgmcmc.callbacks.stop import RunStoppedError, StopSignal
from lightning_sgmcmc.chain import checks
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.run import class_switch, values
from lightning_sgmcmc.run import help as run_help
from lightning_sgmcmc.run.beats import under_torchrun
from lightning_sgmcmc.run.check import damage
from lightning_sgmcmc.run.config_file import read_config, write_config
from lightning_sgmcmc.run.continued import changes
from lightning_sgmcmc.run.errors import Guard, fail
from lightning_sgmcmc.run.folder import RunFolder, is_first, new_name
from lightning_sgmcmc.run.parser_errors import nearest_option, reason
from lightning_sgmcmc.run.ranks import Ranks, check_number
from lightning_sgmcmc.run.shared import SharedFolder
from lightning_sgmcmc.run.until import Rounds
from lightning_sgmcmc.run.wandb_run import WandbRun
from lightning_sgmcmc.run.yaml_check import check_yaml


class _Parser(LightningArgumentParser):
    """Says what is wrong in one line and exits with status 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a nested parser, whose caller collects its complaint
            super().error(message, ex)
        fail(reason(message, ex) + nearest_option(message, self._option_string_actions))


class _TaskAction(jsonargparse.ActionConfigFile):  # type: ignore[name-defined,misc]
    """``--task NAME`` stands for ``--config configs/NAME.yaml``."""

    folder = Path("configs")

    def __call__(
        self, parser: Any, cfg: Any, values: Any, option_string: str | None = None
    ) -> None:
        if option_string == "--task":
            wrong = run_help.unknown_task(self.folder, [option_string, values])
            if wrong is not None:
                parser.error(wrong)
            values = str(self.folder / f"{values}.yaml")
        if os.path.isfile(values):  # a configuration may also be given as it is
            check_yaml(Path(values))
        super().__call__(parser, cfg, values, option_string)


class ChainCLI(LightningCLI):
    """Builds module, data and trainer of one run in its folder.

    Args:
        configs: Folder of the tasks' YAML files.
        args: The command line, without the program's name.
        stop: What a signal asks of the run; None where nobody listens outside its steps.
        held: Where the run's folder is held, and released on leaving; None for as long as the
            process lives.
        callbacks: Of the trainer, beside those of the configuration.
    """

    def __init__(
        self,
        configs: Path,
        args: Sequence[str],
        stop: StopSignal | None = None,
        held: ExitStack | None = None,
        callbacks: Sequence[L.Callback] = (),
    ) -> None:
        self._callbacks = callbacks
        self._configs, self._stop, self._held = configs, stop, held or ExitStack()
        self.arguments = list(args)
        self.resumed: Path | None = None
        super().__init__(
            model_class=SGMCMCModule,
            datamodule_class=L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=None,
            seed_everything_default=0,
            parser_class=_Parser,
            parser_kwargs={
                "prog": "sgmcmc train",
                "description": run_help.TITLE,
                "allow_abbrev": False,
            },
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            run=False,
            args=class_switch.classes_first(args),
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Add ``--task`` beside ``--config``."""
        parser = self.parser_class(**kwargs)
        action = type("_Action", (_TaskAction,), {"folder": self._configs})
        parser.add_argument(
            "-c",
            "--config",
            "--task",
            action=action,
            help="name of a task in configs/, or path of a YAML file; overrides come after it",
        )
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what belongs to a run rather than to the chain."""
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="name of the task in runs/; by default that of the module's class",
        )
        parser.add_argument("--out", type=str | None, default=None, help="folder of the run")
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help='"last" continues the run in --out, and begins it where a task is named and '
            "nothing is there; or the path of a checkpoint",
        )
        parser.add_argument(
            "--finish",
            type=str | None,
            default=None,
            help="folder of a run: write its results and figures again, of its last checkpoint",
        )
        parser.add_argument(
            "--check",
            type=str | None,
            default=None,
            help="folder of a run: read all its files, and say what is damaged",
        )
        parser.add_argument(
            "--checkpoint_every", type=int, default=500, help="steps between checkpoints"
        )
        parser.add_argument(
            "--until",
            type=Literal["sampled"] | None,
            default=None,
            help='"sampled" follows the remedies of the alarms until none is left',
        )
        parser.add_argument(
            "--max_time", type=float | None, default=None, help="minutes for --until, all in all"
        )
        parser.add_argument(
            "--wandb_project",
            type=str | None,
            default="lightning-sgmcmc",
            help="project in Weights & Biases; null for none",
        )
        parser.add_argument(
            "--wandb_draws",
            type=bool,
            default=False,
            help="send the draws to Weights & Biases with the results",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the command line, and say what a class took over from the one it replaces."""
        with class_switch.own_arguments() as switches:
            super().parse_arguments(parser, args)
        for note in class_switch.notes(switches, self.config):
            rank_zero_info(f"Note: {note}")

    def before_instantiate_classes(self) -> None:
        """Check values, name the run, seed the chain, choose the folder, find the checkpoint."""
        values.check(self.config.as_dict())
        if self.config.name is None:
            self.config.name = self.config.model.class_path.rsplit(".", 1)[-1].lower()
        sampler = self.config.model.init_args.get("sampler")
        init = getattr(sampler, "init_args", None)
        seed = self.config.seed_everything
        given = {argument.partition("=")[0] for argument in self.arguments}
        if init is not None and "seed" in init and isinstance(seed, int):
            # A run's config.yaml states the chain's seed, which another --seed_everything replaces.
            follows = init["seed"] == 0 or "--seed_everything" in given
            if follows and "--model.sampler.seed" not in given:
                init["seed"] = int(seed)
        name = getattr(sampler, "class_path", "chain").rsplit(".", 1)[-1].lower()
        default = new_name(self.config.name, name, int(seed) if seed is not None else 0)
        own = RunFolder(self.config.out, default)
        self._held.push(own.leave)
        self.folder = own.path
        if self.config.ckpt_path is not None:
            self.resumed = own.to_continue(self.config.ckpt_path, self.config.finish is None)
        else:
            own.to_start()
        self.changes = changes(self.resumed, self.settings) if self.resumed else []

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Give the trainer the run's loggers, progress, checkpoints and folder."""
        config = dict(self._get(self.config_init, "trainer", default={}))
        own = config.get("logger")
        loggers: list[Any] = [CSVLog(self.folder)]
        if own not in (None, True, False):
            loggers += own if isinstance(own, list) else [own]
        self.checkpoints = ChainCheckpoint(
            self.config.checkpoint_every, self._stop, self.settings, self.changes
        )
        finish = Finish(self.config.name, self.arguments)
        callbacks: list[L.Callback] = [
            *self._callbacks,
            SharedFolder(self.folder),
            self.checkpoints,
            finish,
        ]
        if self.config.finish is not None:
            callbacks.append(NoStep())
        if config.get("enable_progress_bar") is not False:
            callbacks.append(ChainProgress())
        self._check_trainer(config)
        project = self.config.wandb_project if self.config.finish is None else None
        if own is None and project:
            name = f"{self.config.name}-{self.folder.name}"
            run = WandbRun(
                self.folder,
                name,
                project,
                self.settings,
                continues=self.resumed is not None,
                draws=self.config.wandb_draws,
            )
            loggers.append(run)
        config |= {
            "logger": loggers,
            "callbacks": [*(config.get("callbacks") or []), *callbacks],
            "default_root_dir": str(self.folder),
            "enable_checkpointing": True,
        }
        trainer = self._instantiate_trainer(config, [])
        self.ranks = Ranks(trainer, f"Continue with {self.continuing}")
        return trainer

    def _check_trainer(self, config: dict[str, Any]) -> None:
        """Refuse settings under which a chain is biased, before anything is written."""
        refuse_biasing_settings(
            config.get("precision"),
            config.get("gradient_clip_val"),
            config.get("accumulate_grad_batches") or 1,
            config.get("callbacks") or [],
        )
        checks.check_length(config.get("max_steps", -1), self.model.chain.draws)
        self.model.select()
        for callback in config.get("callbacks") or []:
            check = getattr(callback, "check", None)
            if check is not None:
                check(self.model.chain)

    @property
    def continuing(self) -> str:
        """The options that continue this run, from its start where no checkpoint was due."""
        return shlex.join(["--out", str(self.folder), "--ckpt_path", "last", *self.until])

    @property
    def until(self) -> list[str]:
        """The options by which it goes on until the verdict holds; none where it does not."""
        found = {name: self.config.get(name) for name in ("until", "max_time")}
        return [f"--{name}={value}" for name, value in found.items() if value is not None]

    @property
    def settings(self) -> dict[str, Any]:
        """The whole configuration, with which ``--config`` reruns the run, of plain values."""
        config = self.config.clone()
        for key in ("config", "out", "ckpt_path", "finish", "check", "until", "max_time"):
            config.pop(key, None)
        found: dict[str, Any] = yaml.safe_load(
            self.parser.dump(config, skip_none=False, skip_validation=True)
        )
        return found

    @rank_zero_only
    def write_config(self) -> None:
        """Write the whole configuration."""
        write_config(self.folder / "config.yaml", self.settings)


def main(
    configs: Path,
    args: Sequence[str] | None = None,
    callbacks: Sequence[L.Callback] = (),
) -> Path:
    """Run what the command line says.

    Args:
        configs: Folder of the tasks' YAML files.
        args: The command line without the program's name; None takes ``sys.argv``.
        callbacks: Of the trainer, beside those of the configuration.

    Returns:
        The run's folder, which is also the last line printed.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    with Guard() as guard:
        checked = _value(arguments, "--check")
        if checked is not None:
            return _check(Path(checked))
        cli = _run(configs, arguments, guard, callbacks)
        folder = cli.folder
        if cli.config.until is not None:
            until = cli.until
            rounds = Rounds(
                lambda more: _run(configs, [*more, *until], guard).folder, cli.config.max_time
            )
            folder = rounds.follow(folder)
        if cli.trainer.is_global_zero:
            print(folder)
    return folder


def _check(folder: Path) -> Path:
    """Say whether a run's files are sound; exit with status 2 where they are not."""
    found = damage(folder)
    for line in found:
        print(line)
    if found:
        raise SystemExit(2)
    print(f"{folder} is sound")
    return folder


def _run(
    configs: Path, arguments: list[str], guard: Guard, callbacks: Sequence[L.Callback] = ()
) -> ChainCLI:
    """Run one chain, or several at once, to the end."""
    arguments = _with_config_of_resumed_run(arguments)
    _quiet()
    with ExitStack() as held, StopSignal() as stop, guard:
        cli: ChainCLI | None = None
        try:
            cli = _build(configs, arguments, stop, held, callbacks)
            guard.folder = cli.folder
            _fit(cli)
        except RunStoppedError as error:
            # All stop after a step together; in between each machine for itself.
            if cli is None or (is_first() if error.step else cli.trainer.local_rank == 0):
                if error.step is None and is_first():
                    requeue(error.number)
                advice = f": continue with {cli.continuing}" if cli is not None else ""
                print(f"{error}{advice}", file=sys.stderr)
            # Lightning kills all for another status, torchrun starts all again.
            child = cli is not None and cli.ranks.is_child
            raise SystemExit(0 if child or under_torchrun() else error.status) from None
    return cli


def _build(
    configs: Path,
    arguments: list[str],
    stop: StopSignal,
    held: ExitStack,
    callbacks: Sequence[L.Callback],
) -> ChainCLI:
    program, sys.argv = sys.argv, [sys.argv[0]]  # LightningCLI warns when both are given
    try:
        cli = ChainCLI(configs, arguments, stop, held, callbacks)
    finally:
        sys.argv = program
    check_number(cli.trainer)
    if cli.config.until is not None and cli.trainer.world_size > 1:
        fail("--until sampled runs in one process: take --trainer.devices=1")
    (cli.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    cli.write_config()
    return cli


def _fit(cli: ChainCLI) -> None:
    """Take the run's steps and sum them up."""
    together = False  # whether this process ends as all others do
    cli.ranks.start()
    try:
        # A path, not None, tells Lightning to resume; weights_only refuses pickles.
        cli.trainer.fit(
            cli.model,
            datamodule=cli.datamodule,
            ckpt_path=str(cli.resumed) if cli.resumed else None,
            weights_only=True,
        )
        _end_wandb(cli.trainer)
        together = True
    except RunStoppedError as error:
        together = error.step is not None
        raise
    except (RuntimeError, EOFError, OSError):
        found = cli.ranks.lost() if cli.trainer.world_size > 1 else None
        if found is None:
            raise
        cli.ranks.leave(found)
    finally:
        cli.ranks.end(together)


def _end_wandb(trainer: L.Trainer) -> None:
    """End the run at W&B; in a script it is the user's, who may go on with it."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, WandbLogger) and not isinstance(logger, WandbRun):
            logger.experiment.finish()


def _with_config_of_resumed_run(arguments: list[str]) -> list[str]:
    """Let ``--out DIR --ckpt_path last`` continue, and ``--finish DIR`` sum up, the run in DIR."""
    finished = _value(arguments, "--finish")
    if finished not in (None, "null"):
        arguments = [*arguments, "--out", finished, "--ckpt_path", "last"]
    named = any(a.split("=")[0] in ("--task", "--config", "-c") for a in arguments)
    out = _value(arguments, "--out")
    if named or out is None or _value(arguments, "--ckpt_path") is None:
        return arguments
    config = Path(out) / "config.yaml"
    if not config.is_file():
        fail(f"there is no run to continue in {out}: {config} is missing")
    read_config(config)
    return ["--config", str(config), *arguments]


def _value(arguments: list[str], option: str) -> str | None:
    for i, argument in enumerate(arguments):
        if argument.startswith(option + "="):
            return argument.split("=", 1)[1]
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def _says_something(record: logging.LogRecord) -> bool:
    talk = (
        r"(GPU|TPU|HPU)s? available|Tip: |LitLogger|litlogger|Seed set|_pytree|"
        "`max_steps=.*reached|Restored all states"
    )
    return not re.search(talk, record.getMessage())


def _quiet() -> None:
    """Silence what Lightning says of itself; the run says what matters."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(_says_something)
    for pattern in (
        ".*does not have many workers.*",
        ".*is smaller than the logging interval.*",
        ".*all_gather is deprecated.*",  # Lightning 2.6 under torch 2.14
        ".*isinstance.treespec, LeafSpec.*",
        ".*module.s. in eval mode at the start of training.*",  # frozen statistics
        ".*You defined a `validation_step` but have no `val_dataloader`.*",
        ".*No validation batches.*",
        ".*ended before the epoch ended and your dataloader is not resumable.*",
        ".*Total length of `.*` across ranks is zero.*",
        ".*Checkpoint directory .* exists and is not empty.*",
    ):
        warnings.filterwarnings("ignore", pattern)
