"""The array functions of arviz-stats, which work without docstrings too."""

from __future__ import annotations

import sys
from typing import Any

from arviz_stats.base import stats_utils
from arviz_stats.base.array import array_stats

__all__ = ["array_stats"]


def _leave_docstring(*args: Any) -> None:
    """Add nothing to the docstring of a function."""


if sys.flags.optimize > 1:  # python -OO: arviz-stats would add to docstrings that are None
    setattr(stats_utils, "update_docstring", _leave_docstring)  # noqa: B010, of a function's type
