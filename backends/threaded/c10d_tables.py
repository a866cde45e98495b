"""What torch.distributed knows of its groups, for each rank that is a thread, and what the rank has made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch._C._distributed_c10d import _register_process_group

from simcoll.backends.engine.world import World
from simcoll.backends.threaded.session import PendingWaits, RankSession
from simcoll.backends.threaded.store import RankStore
from simcoll.core.rank_local import RankLocal, RankThreads


@dataclass
class Tables:
    """What c10d knows of its groups, for one rank."""

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
    """One rank: its place in the engine, what it records, and what it has made of the default group.

    ``unasked`` says that a default group is made when the program needs one that it has not made itself.
    """

    rank: int
    world: World
    session: RankSession
    waits: PendingWaits
    stores: Mapping[tuple[str, object], RankStore]
    unasked: bool
    tables: Tables = field(default_factory=Tables)
    lives: int = 0
    initialising: bool = False
    unnamed: bool = False
    made: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)


torch_ranks: RankLocal[TorchRank | None] = RankLocal(lambda: None)
"""The calling thread's rank; None in a thread that belongs to none."""


def know_groups_of(rank: TorchRank) -> None:
    """Have C++ know the groups of a rank in a thread that it has started."""
    for group, name in list(rank.tables.pg_names.items()):
        _register_process_group(name, group)


def of_thread(rank: RankThreads) -> TorchRank:
    """What torch knows of a rank; raises KeyError for a rank of another run."""
    found: TorchRank = rank.values[torch_ranks]
    return found
