"""The state of torch.distributed for each rank that is a thread: its tables of groups, and the rank's own session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch._C._distributed_c10d import _register_process_group

from simcoll.backends.engine.world import World
from simcoll.backends.threaded.session import RankSession, RankWaits
from simcoll.backends.threaded.store import RankStore
from simcoll.core.rank_local import RankLocal, RankThreads


@dataclass
class C10dTables:
    """The tables of c10d, for one rank."""

    default_pg: Any = None
    pg_map: dict[Any, Any] = field(default_factory=dict)
    pg_names: dict[Any, Any] = field(default_factory=dict)
    pg_group_ranks: dict[Any, Any] = field(default_factory=dict)
    pg_backend_config: dict[Any, Any] = field(default_factory=dict)
    group_count: int = 0
    tags_to_pg: dict[Any, Any] = field(default_factory=dict)
    pg_to_tag: dict[Any, Any] = field(default_factory=dict)
    pg_coalesce_state: dict[Any, Any] = field(default_factory=dict)
    comms: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class TorchRank:
    """One rank: its place in the engine, its records, its tables of c10d.

    ``creates_default_group``: a default group is made when the program needs one that it has not made itself;
    ``default_group_is_implicit``: that has happened. ``lives`` counts the default groups, ``group_counts`` new groups
    by name and members.
    """

    rank: int
    world: World
    session: RankSession
    waits: RankWaits
    stores: Mapping[tuple[str, object], RankStore]
    creates_default_group: bool
    tables: C10dTables = field(default_factory=C10dTables)
    lives: int = 0
    initialising: bool = False
    default_group_is_implicit: bool = False
    group_counts: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)


torch_ranks: RankLocal[TorchRank | None] = RankLocal(lambda: None)
"""The calling thread's rank; None in a thread that belongs to no rank."""


def register_groups(rank: TorchRank) -> None:
    """Register the groups of a rank with C++ in a thread that the rank has started."""
    for group, name in list(rank.tables.pg_names.items()):
        _register_process_group(name, group)


def of_thread(rank: RankThreads) -> TorchRank:
    """The torch state of a rank; raises KeyError for a rank of another run."""
    found: TorchRank = rank.values[torch_ranks]
    return found
