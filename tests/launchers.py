"""What starts the processes of a page's command, and the variables that it sets for the first."""

from __future__ import annotations

import re
from argparse import ArgumentParser

from torch.distributed.run import get_args_parser


def torchrun(words: list[str], block: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables that torchrun would set, and the words of its command."""
    found = get_args_parser().parse_args(words)
    assert found.module
    nodes, each = int(found.nnodes), int(found.nproc_per_node)
    check_counts(nodes, each, found.training_script_args)
    variables = {
        "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": found.rdzv_id,
        "WORLD_SIZE": str(nodes * each), "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
    }  # fmt: skip
    return variables, [found.training_script, *found.training_script_args]


def srun(words: list[str], block: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables that SLURM would set in the job of a script, and the words of a step."""
    script = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", block, re.M))
    parser = ArgumentParser()
    parser.add_argument("--kill-on-bad-exit")
    start = words.index("sgmcmc")
    parser.parse_args(words[:start])
    nodes, each = int(script["nodes"]), int(script["ntasks-per-node"])
    assert script["signal"].startswith("USR1@")
    assert int(script["gpus-per-node"]) == each
    check_counts(nodes, each, words[start:])
    variables = {
        "SLURM_NTASKS": str(nodes * each), "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_NNODES": str(nodes), "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "localhost",
    }  # fmt: skip
    return variables, words[start:]


def check_counts(nodes: int, each: int, arguments: list[str]) -> None:
    """Compare what a launcher starts with what the command is told, as Lightning does in a fit."""
    assert f"--trainer.num_nodes={nodes}" in arguments
    assert f"--trainer.devices={each}" in arguments


def docker(words: list[str], block: str) -> tuple[dict[str, str], list[str]]:
    """Return the command of an image whose entry point is ``sgmcmc``."""
    assert words[0] == "run"
    return {}, ["sgmcmc", *words[words.index("sgmcmc-cuda") + 1 :]]


LAUNCHERS = {"torchrun": torchrun, "srun": srun, "docker": docker}
