"""A number of every step on a device that the host looks at, without a wait at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Steps from one look of the host to the next, by the kind of device.
_STEPS = {"cpu": 1}
_ELSEWHERE = 100


def steps_between_looks(device: torch.device) -> int:
    """Return after how many steps the host looks at what a chain on this device computed.

    On a GPU a look waits until all steps that the host has queued are done, and the GPU then
    waits for the host; so it is taken every 100 steps there, and at every step on the CPU.
    """
    return _STEPS.get(device.type, _ELSEWHERE)


class Watch:
    """Hands a small tensor of every step to a judge on the host, in order, some steps later.

    What the judge raises at a look that came late stands for all later looks: the chain has gone
    on from a state that is not to be used.

    Args:
        judge: Called with the tensor, on the host, and the note that was left with it.
    """

    def __init__(self, judge: Callable[[Tensor, Any], None]) -> None:
        self._judge = judge
        self._seen: list[tuple[Tensor, Any]] = []
        self._verdict: Exception | None = None

    def see(self, value: Tensor, note: Any) -> None:
        """Take in a step's tensor, which nobody changes later, and look where it is time to."""
        if steps_between_looks(value.device) == 1:
            self._judge(value, note)
            return
        self._seen.append((value, note))
        if len(self._seen) >= steps_between_looks(value.device):
            self.look()

    def look(self) -> None:
        """Judge all that was not looked at yet, waiting for the device.

        Raises:
            Exception: What the judge raises, or raised at an earlier look.
        """
        if self._verdict is not None:
            raise self._verdict
        seen, self._seen = self._seen, []
        if not seen:
            return
        values = torch.stack([value for value, _ in seen]).cpu()
        try:
            for value, (_, note) in zip(values, seen, strict=True):
                self._judge(value, note)
        except Exception as error:
            self._verdict = error
            raise

    def forget(self) -> None:
        """Start anew, as a chain does that returns to an earlier state."""
        self._seen, self._verdict = [], None
