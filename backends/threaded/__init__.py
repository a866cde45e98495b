"""Runs unchanged torch.distributed programs with a thread for each rank.

It has the process group on the engine, and a copy for each rank of the state that a process has once: environment,
stores, random state, c10d's tables.

In PyTorch's own test harness ranks run freely, and an alarm stands where the harness looks for collectives in progress
(:mod:`simcoll.backends.threaded.process_group`). Otherwise ranks take turns, and the wrapper of real jobs stands around
the group, so that findings are the same by construction. A clock runs while its rank has the turn; sleep, events and
timeouts are waits in that time: where no rank can go on, the wait that is over first ends. A thread that waits in C++
keeps its rank's turn; so a future is handed out only when the others have gone as far as they can, and one that goes to
C++ only when it has ended (:mod:`simcoll.backends.threaded.work`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.public_paths import lazy_names

if TYPE_CHECKING:
    from simcoll.backends.threaded.process_group import create_process_group

__all__ = ["create_process_group"]

__getattr__ = lazy_names(
    __name__,
    {
        "create_process_group": "simcoll.backends.threaded.process_group",
    },
)
