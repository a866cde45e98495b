"""Random numbers of ranks that are threads: each has generators of its own, as a process has.

Ranks that draw from one seed what they must agree on (the sizes that each sends, a common sample) would otherwise draw
from one stream in turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from simcoll.core.rank_local import RankLocal, acting_rank


class TurningGenerator:
    """torch's default generator, which C++ has once: it is set to the state of the rank that goes on."""

    def __init__(self) -> None:
        self._process = torch.default_generator.get_state()
        self._states: dict[int, torch.Tensor] = {}
        self._owner: int | None = None

    def turn_to(self, rank: int) -> None:
        """A rank goes on."""
        if rank == self._owner:
            return
        if self._owner is not None:
            self._states[self._owner] = torch.default_generator.get_state()
        torch.default_generator.set_state(self._states.get(rank, self._process))
        self._owner = rank

    def restore(self) -> None:
        """The ranks have ended; the process goes on as if they had drawn nothing."""
        torch.default_generator.set_state(self._process)


@contextmanager
def random_numbers_of_ranks(seed: int) -> Iterator[None]:
    """Have ``random`` and ``numpy.random`` draw from generators of the rank, as long as the block lasts.

    A process begins with a seed of its own; so does a rank, which follows from ``seed`` and its number.
    """
    python = RankLocal(lambda: random.Random(f"{seed} {_rank()}"))  # noqa: S311  # a program's own numbers
    numpy = RankLocal(lambda: np.random.RandomState(abs(seed) * 65537 % 2**31 + _rank()))
    of_python: Any = random
    replaced = _replaced(random, of_python._inst, python) + _replaced(np.random, np.random.mtrand._rand, numpy)
    try:
        yield
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)


def _rank() -> int:
    rank = acting_rank()
    return 0 if rank is None else rank.rank


def _replaced(module: Any, generator: object, own: RankLocal[Any]) -> list[tuple[Any, str, Any]]:
    """Replace a module's functions that are methods of its one generator; gives what was there."""
    found = []
    for name, function in list(vars(module).items()):
        bound = getattr(function, "__self__", None) is generator or (module is np.random and name == "seed")
        if bound and not name.startswith("_"):
            found.append((module, name, function))
            setattr(module, name, _of_rank(function, own))
    return found


def _of_rank(function: Callable[..., Any], own: RankLocal[Any]) -> Callable[..., Any]:
    name = function.__name__

    def draw(*args: Any, **kwargs: Any) -> Any:
        generator = function if acting_rank() is None else getattr(own.here, name)
        return generator(*args, **kwargs)

    return draw
