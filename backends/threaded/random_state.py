"""Random numbers of ranks that are threads: each has generators of its own, as a process has.

Ranks that draw what they must agree on from the same seed (the sizes that each sends, a common sample) would otherwise
share one stream.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankLocal, acting_rank


class SwitchedGenerator:
    """Switches torch's default generator, of which C++ has only one, to the state of the rank that runs."""

    def __init__(self) -> None:
        self._process = torch.default_generator.get_state()
        self._states: dict[int, torch.Tensor] = {}
        self._owner: int | None = None

    def switch_to(self, rank: int) -> None:
        """Set the state of a rank that goes on."""
        if rank == self._owner:
            return
        if self._owner is not None:
            self._states[self._owner] = torch.default_generator.get_state()
        torch.default_generator.set_state(self._states.get(rank, self._process))
        self._owner = rank

    def restore(self) -> None:
        """Set the process's own state: the process goes on as if the ranks had drawn nothing."""
        torch.default_generator.set_state(self._process)


def replace_generators(patches: Patches, seed: int) -> None:
    """Let ``random`` and ``numpy.random`` draw from generators of the rank.

    Like a process, each rank begins with a seed of its own, which follows from ``seed`` and the rank.
    """
    python = RankLocal(lambda: random.Random(f"{seed} {_rank()}"))  # noqa: S311  # a program's own numbers
    numpy = RankLocal(lambda: np.random.RandomState(abs(seed) * 65537 % 2**31 + _rank()))
    of_python: Any = random
    _replace_functions(patches, random, of_python._inst, python)
    _replace_functions(patches, np.random, np.random.mtrand._rand, numpy)


def _rank() -> int:
    rank = acting_rank()
    return 0 if rank is None else rank.rank


def _replace_functions(patches: Patches, module: Any, generator: object, own: RankLocal[Any]) -> None:
    """Replace a module's functions that are methods of its one generator."""
    for name, function in list(vars(module).items()):
        bound = getattr(function, "__self__", None) is generator or (module is np.random and name == "seed")
        if bound and not name.startswith("_"):
            patches.replace(module, name, _of_rank(function, own))


def _of_rank(function: Callable[..., Any], own: RankLocal[Any]) -> Callable[..., Any]:
    name = function.__name__

    def draw(*args: Any, **kwargs: Any) -> Any:
        generator = function if acting_rank() is None else getattr(own.here, name)
        return generator(*args, **kwargs)

    return draw
