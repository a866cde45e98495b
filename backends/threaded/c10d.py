"""torch.distributed for ranks that are threads: the engine runs their groups, whatever backend they ask for.

Each rank has tables of groups of its own, and in-memory stores, whatever address or store its program names.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import _register_process_group
from torch.distributed import device_mesh, distributed_c10d

from simcoll.backends.engine.tensor_data import TensorData
from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.engine.world import World
from simcoll.backends.threaded.process_group import ThreadedProcessGroup
from simcoll.backends.threaded.session import RankSession, RankWaits
from simcoll.backends.threaded.store import RankStore
from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankLocal, RankThreads
from simcoll.core.record import Group
from simcoll.recorder.group_creation import declared
from simcoll.spec.call import Call
from simcoll.wrapper import hooks
from simcoll.wrapper.python_group import RecordedPythonGroup


def accept_default_group(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group`` that accepts once an implicit default group as the one that the program asks for."""

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank = torch_ranks.here
        if rank is None or rank.initialising:
            return initialise(*args, **kwargs)
        if rank.default_group_is_implicit and rank.tables.default_pg is not None:
            rank.default_group_is_implicit = False
            return None
        rank.initialising = True
        try:
            return initialise(*args, **kwargs)
        finally:
            rank.initialising = False
            rank.lives += 1

    return init_process_group


def with_rank_store(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group`` with the ranks' store in place of the one that the program names."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank = torch_ranks.here
        if rank is None:
            return initialise(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        number, size = _place(rank, given)
        if not 0 <= number < size:
            raise ValueError(f"rank {number} of {size}: expected a rank below the world size, from 0")
        given |= {"rank": number, "world_size": size, "store": rank.stores["life", rank.lives], "init_method": None}
        given.pop("device_id", None)
        return initialise(**given)

    return init_process_group


def _place(rank: TorchRank, given: Mapping[str, Any]) -> tuple[int, int]:
    """The rank and world size that a call declares, or else those of the launcher."""
    number, size = declared(given, "rank"), declared(given, "world_size")
    return (rank.rank if number is None else number), (rank.world.size if size is None else size)


def replace_stores(patches: Patches) -> None:
    """Replace the stores that a program makes by the ranks' own: a wait in another one would keep the turn."""
    names: dict[str, Callable[..., Any]] = {"TCPStore": _tcp_store, "FileStore": _file_store, "rendezvous": _rendezvous}
    for module in (dist, distributed_c10d):
        for name, own in names.items():
            patches.wrap(module, name, functools.partial(_for_ranks, own=own))


def _for_ranks(original: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        rank = torch_ranks.here
        return original(*args, **kwargs) if rank is None else own(rank, *args, **kwargs)

    return make


def _tcp_store(rank: TorchRank, host_name: str, port: int = 0, *args: Any, **kwargs: Any) -> RankStore:
    return rank.stores["tcp", port]


def _file_store(rank: TorchRank, file_name: str, *args: Any, **kwargs: Any) -> RankStore:
    return rank.stores["file", str(file_name)]


def _rendezvous(rank: TorchRank, url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[RankStore, int, int]]:
    given = dict(zip(("rank", "world_size"), args, strict=False)) | kwargs | {"init_method": url}
    yield (rank.stores["rendezvous", url], *_place(rank, given))


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


_PLUGIN = "SIMCOLL_RANKS"
_MEETING = Call("barrier", "barrier")


class PerRankWorld:
    """Replaces c10d's ``_world`` by the tables of the calling thread's rank."""

    def __init__(self, process: Any) -> None:
        vars(self)["_process"] = process

    def __getattr__(self, name: str) -> Any:
        rank = torch_ranks.here
        if rank is None:
            return getattr(vars(self)["_process"], name)
        if name == "pg_config_info":
            return type(vars(self)["_process"]).pg_config_info.fget(self)
        if name == "default_pg":
            if _torch_is_being_imported():
                return None
            if rank.tables.default_pg is None:
                _make_default_group(rank)
        if not hasattr(rank.tables, name):
            # A table that another version of torch has.
            setattr(rank.tables, name, type(getattr(vars(self)["_process"], name))())
        return getattr(rank.tables, name)

    def __setattr__(self, name: str, value: Any) -> None:
        rank = torch_ranks.here
        setattr(vars(self)["_process"] if rank is None else rank.tables, name, value)


def _torch_is_being_imported() -> bool:
    """True if a module of torch asks while it is imported: the default that it takes then is every rank's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.")


def _make_default_group(rank: TorchRank) -> None:
    """Make the default group of a program that does not make it itself; ranks do not wait for each other then."""
    if rank.creates_default_group and not rank.initialising and rank.lives == 0:
        rank.default_group_is_implicit = True
        dist.init_process_group("gloo")


class RankBackendConfig(distributed_c10d.BackendConfig):
    """The backend of each device: for ranks always the engine, under the name that the program asks for."""

    def get_device_backend_map(self) -> dict[str, Any]:
        """The backend of each device."""
        asked: dict[str, Any] = super().get_device_backend_map()
        return asked if torch_ranks.here is None else dict.fromkeys(asked, _PLUGIN.lower())


def _create(options: Any, backend_options: Any) -> RecordedPythonGroup:
    """Make a group's backend, called by c10d."""
    rank = torch_ranks.here
    assert rank is not None
    size, place, timeout = options.group_size, options.group_rank, options.timeout
    members = tuple(options.global_ranks_in_group) or tuple(range(size))
    _meet(rank, options.group_id, members, place, timeout)
    inner = ThreadedProcessGroup(
        rank.world,
        place,
        size,
        members=lambda group: members,
        timeout=timeout,
        store=options.store,
        backend_name="gloo",
        waiting=rank.waits,
    )
    group = RecordedPythonGroup(options.store, place, size, inner=inner)
    group.record_in(rank.session, members=members, timeout=timeout)
    return group


def _meet(rank: TorchRank, name: str, members: tuple[int, ...], place: int, timeout: timedelta) -> None:
    """Let the members of a new group wait for each other; this meeting is not recorded."""
    rank.group_counts[name, members] += 1
    meeting = Group(f"making {name}, {rank.group_counts[name, members]}", "", members)
    ticket = Ticket(meeting, place, _MEETING, TensorData((), ()))
    with rank.waits:
        rank.world.post(ticket)
        if ticket.done:
            # The last rank to come goes on last, so that the order is that of the ranks.
            rank.world.threads.yield_turn(rank.rank)
        elif not rank.default_group_is_implicit or members != tuple(range(rank.world.size)):
            rank.world.wait(ticket, timeout.total_seconds())


@contextmanager
def torch_for_ranks(patches: Patches) -> Iterator[None]:
    """Let torch.distributed serve ranks that are threads, within the block; ``patches`` are restored after it."""
    plugins = dist.Backend._plugins
    plugins[_PLUGIN] = dist.Backend._BackendPlugin(_create, True)
    patches.wrap(distributed_c10d, "_world", PerRankWorld)
    patches.replace(distributed_c10d, "BackendConfig", RankBackendConfig)
    # Meshes of different ranks are different ones, though they look equal: torch distinguishes them for this backend.
    patches.wrap(device_mesh, "get_backend", functools.partial(_answered_for_ranks, "threaded"))
    # From torch 2.15 on, a Python group that has a device is taken for a C++ one.
    patches.wrap(distributed_c10d, "_maybe_attach_flight_recorder", functools.partial(_answered_for_ranks, None))
    replace_stores(patches)
    patches.replace(sys, "excepthook", sys.excepthook)  # to restore it: programs may set another one
    isolate: Callable[[bool], None] = c10d._set_thread_isolation_mode  # type: ignore[attr-defined]
    isolate(True)
    try:
        with hooks.hooks(with_rank_store, accept_default_group):
            yield
    finally:
        isolate(False)
        plugins.pop(_PLUGIN, None)


def _answered_for_ranks(answer: object, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns ``answer`` in threads of ranks, and works as before elsewhere."""
    return lambda *args: answer if torch_ranks.here is not None else original(*args)
