"""Test your own distributed code: run a function on several ranks from within a test.

Three backends run it: ``simulated`` (numpy, deterministic threads, no torch), ``threaded`` (torch.distributed, each
rank a thread) and ``gloo`` (torch.distributed, each rank a process on real Gloo). Each run is recorded and judged by
the rules of ``simcoll run``; :func:`run_ranks` raises failures and findings, :func:`try_ranks` returns them.

The pytest plugin is here as well, and is loaded whenever pytest starts: names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.public_paths import lazy_names

if TYPE_CHECKING:
    from simcoll.backends.simulated.object_calls import ObjectComm as Comm
    from simcoll.testing.failures import FindingsError, UncheckedWarning
    from simcoll.testing.run import run_ranks, try_ranks

__all__ = ["Comm", "FindingsError", "UncheckedWarning", "run_ranks", "try_ranks"]

_HOMES = {
    "Comm": "simcoll.backends.simulated.object_calls:ObjectComm",
    "FindingsError": "simcoll.testing.failures",
    "UncheckedWarning": "simcoll.testing.failures",
    "run_ranks": "simcoll.testing.run",
    "try_ranks": "simcoll.testing.run",
}

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
