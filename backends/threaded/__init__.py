"""Runs unchanged torch.distributed programs with a thread for each rank.

The process group over the engine lives here, and what torch keeps once a process and each rank needs for itself:
environment, stores, random state, c10d's tables.
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
