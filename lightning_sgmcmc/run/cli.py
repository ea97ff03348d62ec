"""The command line: ``--task NAME``, overrides by dotted names, one folder a run."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import jsonargparse
import lightning as L
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from lightning_sgmcmc.callbacks import (
    ChainCheckpoint,
    ChainDivergedError,
    ChainProgress,
    ReplicasDifferError,
)
from lightning_sgmcmc.callbacks.settings import refuse_biasing_settings
from lightning_sgmcmc.chain import checks
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior.draws import write_beside
from lightning_sgmcmc.preconditioners.fisher_dense import SingularMetricError
from lightning_sgmcmc.run import class_switch
from lightning_sgmcmc.run import help as run_help
from lightning_sgmcmc.run.finish import NoStep, finish
from lightning_sgmcmc.run.loggers import CSVLog, wandb_logger
from lightning_sgmcmc.run.parser_errors import reason
from lightning_sgmcmc.run.until import Rounds
from lightning_sgmcmc.samplers import NonFiniteGradientError

_FOLDER_VARIABLE = "SGMCMC_RUN_FOLDER"
_USER_ERRORS = (ValueError, TypeError, FileNotFoundError, FileExistsError)
_CHAIN_ERRORS = (
    ChainDivergedError,
    NonFiniteGradientError,
    ReplicasDifferError,
    SingularMetricError,
)


class CommandLineError(ValueError):
    """A command that cannot be carried out; its message is one line."""


class _Parser(LightningArgumentParser):
    """Says what is wrong in one line and exits with status 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a nested parser, whose caller collects its complaint
            super().error(message, ex)
        fail(reason(message, ex))


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
        super().__call__(parser, cfg, values, option_string)


class ChainCLI(LightningCLI):
    """Builds module, data and trainer of one run in its folder.

    Args:
        configs: Folder of the tasks' YAML files.
        args: The command line, without the program's name.
    """

    def __init__(self, configs: Path, args: Sequence[str]) -> None:
        self._configs = configs
        self.resumed: Path | None = None
        super().__init__(
            model_class=SGMCMCModule,
            datamodule_class=L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=None,
            seed_everything_default=0,
            parser_class=_Parser,
            parser_kwargs={"prog": "sgmcmc train", "description": run_help.TITLE},
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
            help='"last" continues the run in --out; or the path of a checkpoint',
        )
        parser.add_argument(
            "--finish",
            type=str | None,
            default=None,
            help="folder of a run: write its results and figures again, of its last checkpoint",
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

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the command line, and say what a class took over from the one it replaces."""
        with class_switch.own_arguments() as switches:
            super().parse_arguments(parser, args)
        for note in class_switch.notes(switches, self.config):
            rank_zero_info(f"Note: {note}")

    def before_instantiate_classes(self) -> None:
        """Name the run, seed the chain, choose the folder and find the checkpoint."""
        if self.config.name is None:
            self.config.name = self.config.model.class_path.rsplit(".", 1)[-1].lower()
        sampler = self.config.model.init_args.get("sampler")
        init = getattr(sampler, "init_args", None)
        seed = self.config.seed_everything
        if init is not None and init.get("seed") == 0 and isinstance(seed, int):
            init["seed"] = int(seed)
        name = getattr(sampler, "class_path", "chain").rsplit(".", 1)[-1].lower()
        self.folder = self._choose_folder(name, int(seed) if seed is not None else 0)
        self.resumed = self._checkpoint()

    def _choose_folder(self, sampler: str, seed: int) -> Path:
        given = self.config.out
        if given is None and "LOCAL_RANK" in os.environ:  # a process that the first one started
            given = os.environ.get(_FOLDER_VARIABLE)
        if given is None:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            given = str(Path("runs") / self.config.name / f"{sampler}-seed{seed}-{stamp}")
        os.environ[_FOLDER_VARIABLE] = given
        return Path(given)

    def _checkpoint(self) -> Path | None:
        wanted = self.config.ckpt_path
        if wanted is None:
            first = int(os.environ.get("LOCAL_RANK", 0)) == 0
            if first and any((self.folder / n).exists() for n in ("config.yaml", "samples")):
                raise CommandLineError(
                    f"{self.folder} already holds a run: continue it with --ckpt_path last, or "
                    "choose another --out"
                )
            return None
        path = self.folder / "checkpoints" / "last.ckpt" if wanted == "last" else Path(wanted)
        if not path.is_file():
            raise CommandLineError(
                f"there is no checkpoint {path}: nothing to continue; without --ckpt_path a run "
                "starts anew"
            )
        return path

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Give the trainer the run's loggers, progress, checkpoints and folder."""
        config = dict(self._get(self.config_init, "trainer", default={}))
        own = config.get("logger")
        loggers: list[Any] = [CSVLog(self.folder)]
        if own not in (None, True, False):
            loggers += own if isinstance(own, list) else [own]
        self.checkpoints = ChainCheckpoint(self.config.checkpoint_every)
        callbacks: list[L.Callback] = [self.checkpoints]
        if self.config.finish is not None:
            callbacks.append(NoStep())
        if config.get("enable_progress_bar") is not False:
            callbacks.append(ChainProgress())
        self._check_trainer(config)
        project = self.config.wandb_project if self.config.finish is None else None
        if own is None and project and not config.get("fast_dev_run"):
            name = f"{self.config.name}-{self.folder.name}"
            loggers.append(wandb_logger(self.folder, name, project))
        config |= {
            "logger": loggers,
            "callbacks": [*(config.get("callbacks") or []), *callbacks],
            "default_root_dir": str(self.folder),
            "enable_checkpointing": True,
        }
        return self._instantiate_trainer(config, [])

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

    @rank_zero_only
    def write_config(self) -> None:
        """Write the whole configuration, with which ``--config`` reruns the run."""
        config = self.config.clone()
        for key in ("config", "out", "ckpt_path", "finish", "until", "max_time"):
            config.pop(key, None)
        text = self.parser.dump(config, skip_none=False, skip_validation=True)
        write_beside(self.folder / "config.yaml", text)


def fail(message: str) -> NoReturn:
    """Print one line and exit with status 2."""
    print(f"error: {_one_line(message)}", file=sys.stderr)
    raise SystemExit(2)


def _one_line(message: str) -> str:
    return re.sub(r"\s+", " ", str(message)).strip()


def main(configs: Path, args: Sequence[str] | None = None) -> Path:
    """Run what the command line says.

    Args:
        configs: Folder of the tasks' YAML files.
        args: The command line without the program's name; None takes ``sys.argv``.

    Returns:
        The run's folder, which is also the last line printed.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    cli = _run(configs, arguments)
    folder = cli.folder
    if cli.config.until is not None:
        rounds = Rounds(lambda more: _run(configs, more).folder, cli.config.max_time)
        folder = rounds.follow(folder)
    if cli.trainer.is_global_zero:
        print(folder)
    return folder


def _run(configs: Path, arguments: list[str]) -> ChainCLI:
    """Run one chain, or several at once, to the end."""
    arguments = _with_config_of_resumed_run(arguments)
    _quiet()
    program, sys.argv = sys.argv, [sys.argv[0]]  # LightningCLI warns when both are given
    try:
        cli = ChainCLI(configs, arguments)
    except _USER_ERRORS as error:
        fail(reason(str(error), error))
    finally:
        sys.argv = program
    folder = cli.folder
    if cli.config.until is not None and cli.trainer.world_size > 1:
        fail("--until sampled runs in one process: take --trainer.devices=1")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    if cli.resumed is None:
        cli.write_config()
    try:
        # A path, not None, tells Lightning to resume; weights_only refuses pickles.
        cli.trainer.fit(
            cli.model,
            datamodule=cli.datamodule,
            ckpt_path=str(cli.resumed) if cli.resumed else None,
            weights_only=True,
        )
        if cli.trainer.interrupted:
            print(f"interrupted: continue with --out {folder} --ckpt_path last", file=sys.stderr)
            raise SystemExit(130)
        finish(cli.trainer, cli.model, folder, cli.config.name, cli.checkpoints.seconds)
    except _USER_ERRORS as error:
        fail(str(error))
    except _CHAIN_ERRORS as error:
        print(f"error: {_one_line(str(error))}", file=sys.stderr)
        raise SystemExit(3) from None
    return cli


def _with_config_of_resumed_run(arguments: list[str]) -> list[str]:
    """Let ``--out DIR --ckpt_path last`` continue, and ``--finish DIR`` sum up, the run in DIR."""
    finished = _value(arguments, "--finish")
    if finished is not None:
        arguments = [*arguments, "--out", finished, "--ckpt_path", "last"]
    named = any(a.split("=")[0] in ("--task", "--config", "-c") for a in arguments)
    out = _value(arguments, "--out")
    if named or out is None or _value(arguments, "--ckpt_path") is None:
        return arguments
    config = Path(out) / "config.yaml"
    if not config.is_file():
        fail(f"there is no run to continue in {out}: {config} is missing")
    return ["--config", str(config), *arguments]


def _value(arguments: list[str], option: str) -> str | None:
    for i, argument in enumerate(arguments):
        if argument.startswith(option + "="):
            return argument.split("=", 1)[1]
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def _quiet() -> None:
    """Silence what Lightning says of itself; the run says what matters."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(
            lambda record: (
                not re.search(
                    r"(GPU|TPU|HPU)s? available|Tip: |LitLogger|litlogger|Seed set|_pytree",
                    record.getMessage(),
                )
            )
        )
    for pattern in (
        ".*does not have many workers.*",
        ".*is smaller than the logging interval.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*module.s. in eval mode at the start of training.*",  # frozen statistics
        ".*You defined a `validation_step` but have no `val_dataloader`.*",
        ".*No validation batches.*",
        ".*ended before the epoch ended and your dataloader is not resumable.*",
        ".*Total length of `.*` across ranks is zero.*",
        ".*Checkpoint directory .* exists and is not empty.*",
    ):
        warnings.filterwarnings("ignore", pattern)
