"""Where the YAML files of tasks and experiments lie."""

from pathlib import Path

_TASKS = Path(__file__).resolve().parent

#: The folder that holds ``configs``: that of a checkout, or of ``tasks`` where it is installed.
HOME = _TASKS if (_TASKS / "configs").is_dir() else _TASKS.parent
CONFIGS = HOME / "configs"
