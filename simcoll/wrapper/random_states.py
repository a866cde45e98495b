"""Writes down digests of activations that ranks have to hold alike, with the states of their random generators.

The placement of a DTensor says which ranks hold the same elements. Where a program makes such a DTensor of activations,
or takes them out of one, their digest and the state of the default generators are noted; the verifier sees where
activations that were equal have become different, and whether ranks drew different random numbers in between. Ranks do
not communicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from simcoll.core.record import Source, source_document
from simcoll.recorder.session import Session
from simcoll.recorder.source import current_source
from simcoll.values.choice import Choice
from simcoll.values.contents import Arrivals, Hasher, HostCopy, is_plain

STEPS_TOGETHER = 4
_MOST_POINTS = 64
"""Activations of a step that are looked at."""

_MOST_SETS = 64
_UNKNOWN = "-" * 8


@dataclass(slots=True)
class _Point:
    """Activations at one place of a step: their digest, once it is known, and the state of the generators."""

    form: str
    state: str
    source: Source
    digest: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """The points of a step whose digests are on their way to the host, of which some are not known."""

    index: int
    number: int
    known: tuple[bool, ...]
    states: tuple[str, ...]


class RandomWatch:
    """The replicated activations of one rank."""

    def __init__(self, session: Session, choice: Choice) -> None:
        self._session = session
        self._choice = choice
        self._number = 0
        self._points: dict[tuple[int, ...], list[_Point]] = {}
        self._waiting: tuple[Any, _Point] | None = None
        self._hashers: dict[str, Hasher] = {}
        self._sets: dict[object, int] = {}
        self._arrivals: Arrivals[_Step] = Arrivals()

    def promised(self, ranks: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Ranks are to hold these elements alike."""
        self._resolve()
        points = self._points.setdefault(ranks, [])
        window = self._number // STEPS_TOGETHER
        if len(points) >= _MOST_POINTS or not self._choice.takes_step(window, STEPS_TOGETHER, always=not window):
            return
        with self._choice.counted():
            self._take(points, tensor)

    def _take(self, points: list[_Point], tensor: torch.Tensor) -> None:
        state = random_state()
        if state is None:
            return
        point = _Point(f"{tensor.dtype} {tuple(tensor.shape)}", state[:8], current_source())
        points.append(point)
        if hasattr(tensor, "completed"):
            # The result of a collective that nobody has waited for: it is looked at when the program has.
            self._waiting = tensor, point
        else:
            self._digest(tensor, point)

    def _resolve(self) -> None:
        if self._waiting is not None:
            (tensor, point), self._waiting = self._waiting, None
            if tensor.completed:
                with self._choice.counted():
                    self._digest(tensor.elem, point)

    def _digest(self, tensor: torch.Tensor, point: _Point) -> None:
        hasher = self._hashers.get(point.form)
        if hasher is None and len(self._hashers) < _MOST_SETS:
            hasher = self._hashers[point.form] = Hasher()
        if hasher is not None and is_plain(tensor) and tensor.numel():
            point.digest = hasher.digests([tensor])

    def stepped(self) -> None:
        """An optimizer has made a step: write down the points before it."""
        self._resolve()
        if any(self._points.values()):
            self._number += 1
            with self._choice.counted():
                self._write()
        self._points.clear()
        self.settle()

    def _write(self) -> None:
        for ranks, points in self._points.items():
            known = [point for point in points if point.digest is not None]
            devices = {point.digest.device for point in known if point.digest is not None}
            index = self._index(ranks, points) if len(devices) == 1 else None
            if index is None:
                continue
            copy = HostCopy.of(torch.cat([point.digest for point in known if point.digest is not None]))
            flags = tuple(point.digest is not None for point in points)
            states = tuple(point.state for point in points)
            self._arrivals.add(copy, _Step(index, self._number - 1, flags, states))

    def _index(self, ranks: tuple[int, ...], points: list[_Point]) -> int | None:
        """The number of a list of places, which is described when it is first met; None of too many."""
        form = blake2b(repr([point.form for point in points]).encode(), digest_size=8).hexdigest()
        recorder = self._session.existing_recorder()
        if (ranks, form) not in self._sets and recorder is not None and len(self._sets) < _MOST_SETS:
            self._sets[ranks, form] = len(self._sets)
            recorder.event(
                "activations",
                index=self._sets[ranks, form],
                ranks=list(ranks),
                form=form,
                sources=[source_document(point.source) for point in points],
            )
        return self._sets.get((ranks, form))

    def settle(self, *, last: bool = False) -> None:
        """Write down what has come to the host; the ``last`` time, what comes soon."""
        self._arrivals.settle(self._arrived, last=last)

    def _arrived(self, words: npt.NDArray[np.int64], step: _Step) -> None:
        recorder = self._session.existing_recorder()
        if recorder is not None:
            found = iter(words.view(np.uint64).tolist())
            digests = [f"{next(found) >> 32:08x}" if known else _UNKNOWN for known in step.known]
            recorder.event(
                "promised", index=step.index, number=step.number, digests="".join(digests), states="".join(step.states)
            )


def random_state() -> str | None:
    """The state of the generators that the program has by default, of the host and of its device; None where a graph is
    captured, which the look at a device's generator would end.
    """
    parts = [torch.default_generator.get_state().numpy().tobytes()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        if torch.cuda.is_current_stream_capturing():
            return None
        parts.append(torch.cuda.default_generators[torch.cuda.current_device()].get_state().numpy().tobytes())
    return blake2b(b"".join(parts), digest_size=8).hexdigest()
