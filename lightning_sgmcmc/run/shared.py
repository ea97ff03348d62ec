"""Whether all machines of a run see one folder."""

from __future__ import annotations

import hashlib
import socket
import time
from pathlib import Path

import lightning as L

from lightning_sgmcmc.run.errors import CommandLineError

#: Seconds that a network file system may go on showing what was there before.
_STALE = 90.0


class SharedFolder(L.Callback):
    """Compare the configuration that each process sees with what the first one has just written.

    Without it chains of other machines would lie on their own disks, and a run would continue
    from as many checkpoints as there are machines.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path) -> None:
        self._config = folder / "config.yaml"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Wait until the processes see the same file.

        Raises:
            CommandLineError: If one of them does not.
        """
        if trainer.world_size == 1:
            return
        wanted = trainer.strategy.broadcast(self._seen())
        limit = time.monotonic() + _STALE
        while self._seen() != wanted:
            if time.monotonic() > limit:
                raise CommandLineError(
                    f"{socket.gethostname()} does not see what process 0 has written into "
                    f"{self._config.parent}: take an --out on a file system that all machines share"
                )
            time.sleep(1.0)

    def _seen(self) -> tuple[str, int] | None:
        """Return checksum and time of the file, which is written again at every start."""
        try:
            content = self._config.read_bytes()
            return hashlib.sha256(content).hexdigest(), int(self._config.stat().st_mtime)
        except OSError:
            return None
