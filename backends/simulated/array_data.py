"""The numpy arrays of one call as the engine wants them, watched while the call is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simcoll.backends.simulated.async_checks import Flight
from simcoll.spec.semantics import Array, Outputs


class ArrayData:
    """The buffers of one call: an engine's :class:`~simcoll.backends.engine.tickets.Data`."""

    def __init__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self.flight: Flight | None = None
        """What watches them, if anything does."""
        self.notice: Callable[[], None] = _nothing
        """Called where the inputs were changed before the call ran."""

    def read(self) -> Sequence[Array]:
        """What the inputs hold now."""
        if self.flight is not None and self.flight.runs():
            self.notice()
        return self._inputs

    def write(self, results: Outputs) -> None:
        """Write the results into the caller's arrays; what the standard leaves undefined stays as it was."""
        for result, output in zip(results, self._outputs, strict=True):
            if result is not None:
                np.copyto(output, result)
        if self.flight is not None:
            self.flight.ran()


def _nothing() -> None:
    return None
