"""A run in Weights & Biases: its configuration, what it logs, its verdict and its folder."""

from __future__ import annotations

import netrc
import os
import secrets
import shlex
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from lightning_sgmcmc.callbacks.report.table import numbers, verdict
from lightning_sgmcmc.common.files import write_beside
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.run.continued import named

#: Rows that W&B shows of a table.
_ROWS = 10_000
_TAG = 64  # characters


class WandbRun(WandbLogger):
    """One W&B run for one folder, also where the chain is continued.

    Its config has the names of the command line, such as ``model.sampler.lr``, so that the
    parameters of a sweep are those of any run. The run's id is kept in the folder: with
    ``--ckpt_path last`` the same run goes on. An agent's id, in ``WANDB_RUN_ID``, comes first.
    Without an API key the run is written to the folder only; ``WANDB_MODE`` wins if it is set.

    Args:
        folder: The run's folder.
        name: The run's display name.
        project: The W&B project.
        settings: The whole configuration, of plain values.
        continues: Whether the chain continues from a checkpoint.
        draws: Whether the draws are a part of the artifact.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        project: str,
        settings: Mapping[str, Any],
        *,
        continues: bool = False,
        draws: bool = False,
    ) -> None:
        self.folder, self._draws = folder, draws
        config = {key.removesuffix(".class_path"): value for key, value in named(settings).items()}
        task, sampler = (
            str(config.get(key, key)).rpartition(".")[2] for key in ("name", "model.sampler")
        )
        own: dict[str, Any] = {"config": config, "tags": [task[:_TAG], sampler[:_TAG]]}
        if not os.environ.get("WANDB_RUN_GROUP"):
            own["group"] = f"{task}-{sampler}"
        os.environ.setdefault("WANDB_SILENT", "true")
        super().__init__(
            name=name,
            save_dir=str(folder.absolute()),  # W&B's process keeps the directory it began in
            project=project,
            offline=_is_offline(folder),
            id=self._identity(continues),
            **own,
        )
        # Lightning always passes on a setting of which W&B only says that it has no effect.
        getattr(self, "_wandb_init", {}).pop("anonymous", None)

    def _identity(self, continues: bool) -> str:
        path = self.folder / "wandb" / "run-id"
        given = os.environ.get("WANDB_RUN_ID")
        if given is None and continues and path.is_file():
            return path.read_text().strip()
        identity = given or secrets.token_hex(4)
        if os.environ.get("WANDB_MODE") != "disabled":
            _write(path, identity)
        return identity

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Keep nothing more: the config holds every argument."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run where the chain failed, so that the next in this process is its own."""
        if status != "success" and self._experiment is not None:
            self._experiment.finish(exit_code=1)

    @rank_zero_only
    def sum_up(self, content: dict[str, Any], kept: KeptDraws) -> None:
        """Send what came out, and end the run.

        Final numbers, verdict and alarms go to the summary, the alarms as an alert as well; the
        metrics of every draw are a table; results, configuration and figures are an artifact.

        Args:
            content: Of ``results.json``.
            kept: The draws.
        """
        run = self.experiment
        run.summary.update(summary(content))
        alarms = content["diagnostics"]["alarms"]
        if alarms:
            run.alert("The draws are not a sample yet", "\n".join(alarms), "WARN")
        run.tags = (*self._wandb_init["tags"], "alarm" if alarms else "sampled")
        for image in sorted((self.folder / "figures").glob("*.png")):
            self.log_image(f"figures/{image.stem}", [str(image)])
        history = kept.history[:: -(-len(kept.history) // _ROWS) or 1]
        if history:
            names = list(dict.fromkeys(name for row in history for name in row))
            rows = [[row.get(name) for name in names] for row in history]
            self.log_table("draws", columns=names, data=rows)
        run.log_artifact(self._artifact(run.id, content))
        run.finish()

    def _artifact(self, identity: str, content: dict[str, Any]) -> Any:
        about = {"verdict": verdict(content), "sampler": content["sampler"]["label"]}
        # W&B costs a second, and most commands do without it.
        artifact = import_module("wandb").Artifact(f"run-{identity}", type="run", metadata=about)
        for name in ("results.json", "config.yaml", "metrics.csv"):
            if (self.folder / name).is_file():
                artifact.add_file(str(self.folder / name))
        for name in ("figures", "samples") if self._draws else ("figures",):
            if (self.folder / name).is_dir():
                artifact.add_dir(str(self.folder / name), name=name)
        return artifact


def summary(content: dict[str, Any]) -> dict[str, Any]:
    """Return the final numbers, the verdict and the alarms of a run by name.

    Args:
        content: Of ``results.json``.
    """
    found = content["diagnostics"]
    return (
        numbers(content)
        | {key: content[key] for key in ("num_draws", "num_gradients", "wall_seconds")}
        | {
            "verdict": verdict(content),
            "alarms": len(found["alarms"]),
            "alarm": "\n".join(found["alarms"]),
            "chain": content["sampler"]["label"],
        }
    )


@rank_zero_only
def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_beside(path, f"{text}\n")


def wandb_has_key() -> bool:
    """Return whether W&B can log in without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        server = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
        entry = netrc.netrc().authenticators(urlsplit(server).hostname or server)
        return entry is not None and bool(entry[2])
    except (FileNotFoundError, netrc.NetrcParseError, OSError):
        return False


def _is_offline(folder: Path) -> bool:
    """Return whether a run is written to its folder only; a line says how to send it."""
    mode = os.environ.get("WANDB_MODE")  # Lightning itself leaves "dryrun" there
    offline = mode in ("offline", "dryrun") or (mode is None and not wandb_has_key())
    if offline:
        why = f"WANDB_MODE={mode}" if wandb_has_key() else "no API key"
        rank_zero_info(
            f"W&B: {why}, logging offline; send the run later with "
            f"`wandb sync {shlex.quote(str(folder / 'wandb'))}/offline-run-*`"
        )
    return offline
