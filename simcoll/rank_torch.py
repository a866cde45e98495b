"""torch.distributed for ranks that are threads: their groups are run by the engine, whatever backend is asked for."""

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
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist

# Its functions take the default group for an argument's default when it is first imported: not one rank's for all.
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import _register_process_group
from torch.distributed import device_mesh, distributed_c10d

from simcoll import activation
from simcoll.backends.tensor_data import TensorData
from simcoll.backends.threaded import ThreadedProcessGroup
from simcoll.backends.tickets import Ticket
from simcoll.backends.world import World
from simcoll.call import Call
from simcoll.rank_local import RankLocal, RankThreads
from simcoll.rank_session import RankSession, Waits
from simcoll.rank_store import RankStore
from simcoll.record import Group
from simcoll.recorded_python_group import RecordedPythonGroup

_PLUGIN = "SIMCOLL_RANKS"
_MEETING = Call("barrier", "barrier")


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
    waits: Waits
    stores: Mapping[tuple[str, object], RankStore]
    unasked: bool
    tables: Tables = field(default_factory=Tables)
    lives: int = 0
    initialising: bool = False
    unnamed: bool = False
    made: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)


torch_ranks: RankLocal[TorchRank | None] = RankLocal(lambda: None)
"""The calling thread's rank; None in a thread that belongs to none."""


class WorldOfRanks:
    """Stands in for c10d's ``_world``."""

    def __init__(self, process: Any) -> None:
        vars(self)["_process"] = process

    def __getattr__(self, name: str) -> Any:
        rank = torch_ranks.here
        if rank is None:
            return getattr(vars(self)["_process"], name)
        if name == "pg_config_info":
            return type(vars(self)["_process"]).pg_config_info.fget(self)
        if name == "default_pg" and rank.tables.default_pg is None and not _torch_is_imported_below():
            _make_default_group(rank)
        if not hasattr(rank.tables, name):
            # A table that another torch has beside these.
            setattr(rank.tables, name, type(getattr(vars(self)["_process"], name))())
        return getattr(rank.tables, name)

    def __setattr__(self, name: str, value: Any) -> None:
        rank = torch_ranks.here
        setattr(vars(self)["_process"] if rank is None else rank.tables, name, value)


def _torch_is_imported_below() -> bool:
    """Whether a module of torch asks while it is imported: what it takes for a default is every rank's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.")


def _make_default_group(rank: TorchRank) -> None:
    """Make the default group of a program that does not make it itself; nobody has to wait for the others for it."""
    if rank.unasked and not rank.initialising and rank.lives == 0:
        rank.unnamed = True
        dist.init_process_group("gloo")


class RankBackendConfig(distributed_c10d.BackendConfig):
    """What backend serves which device: for ranks always the engine, under the name that was asked for."""

    def get_device_backend_map(self) -> dict[str, Any]:
        """Devices and backends."""
        asked: dict[str, Any] = super().get_device_backend_map()
        return asked if torch_ranks.here is None else dict.fromkeys(asked, _PLUGIN.lower())


def _create(options: Any, backend_options: Any) -> RecordedPythonGroup:
    """What c10d calls to make a group's backend."""
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
        called="gloo",
        waiting=rank.waits,
    )
    group = RecordedPythonGroup(options.store, place, size, inner=inner)
    group.record_in(rank.session, members=members, timeout=timeout)
    return group


def _meet(rank: TorchRank, name: str, members: tuple[int, ...], place: int, timeout: timedelta) -> None:
    """The members of a new group connect to each other, which no record tells of."""
    rank.made[name, members] += 1
    meeting = Group(f"making {name}, {rank.made[name, members]}", "", members)
    ticket = Ticket(meeting, place, _MEETING, TensorData((), ()))
    with rank.waits:
        rank.world.post(ticket)
        if ticket.done:
            # Who came last goes on last, so that the order is that of the ranks.
            rank.world.threads.give_way(rank.rank)
        elif not rank.unnamed or members != tuple(range(rank.world.size)):
            rank.world.wait(ticket, timeout.total_seconds())


def _accepting(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group`` as a rank's program sees it: it names the group that was made already, once."""

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank = torch_ranks.here
        if rank is None or rank.initialising:
            return initialise(*args, **kwargs)
        if rank.unnamed and rank.tables.default_pg is not None:
            rank.unnamed = False
            return None
        rank.initialising = True
        try:
            return initialise(*args, **kwargs)
        finally:
            rank.initialising = False
            rank.lives += 1

    return init_process_group


def _in_memory(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group`` of torch, with the ranks' own store in place of whatever the program names."""
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
    """The rank and world size that a call states, or else that the launcher has given."""
    query = parse_qs(urlsplit(given.get("init_method") or "").query)
    number, size = given.get("rank", -1), given.get("world_size", -1)
    number = int(query["rank"][0]) if "rank" in query else number
    size = int(query["world_size"][0]) if "world_size" in query else size
    return (rank.rank if number in (-1, None) else number), (rank.world.size if size in (-1, None) else size)


@contextmanager
def torch_for_ranks() -> Iterator[None]:
    """Have torch.distributed know ranks that are threads, as long as the block lasts."""
    module: Any = distributed_c10d
    mesh: Any = device_mesh
    hook, world, config = sys.excepthook, module._world, module.BackendConfig
    plugins = dist.Backend._plugins
    plugins[_PLUGIN] = dist.Backend._BackendPlugin(_create, True)
    module._world, module.BackendConfig = WorldOfRanks(world), RankBackendConfig
    # A mesh is another one in every rank, though it looks the same: torch tells them apart where the backend says so.
    get_backend = mesh.get_backend
    mesh.get_backend = lambda *args: "threaded" if torch_ranks.here is not None else get_backend(*args)
    # From torch 2.15 on, a group in Python that names a device is taken for one in C++.
    attach = getattr(module, "_maybe_attach_flight_recorder", None)
    if attach is not None:
        module._maybe_attach_flight_recorder = lambda *args: None if torch_ranks.here is not None else attach(*args)
    isolate: Callable[[bool], None] = c10d._set_thread_isolation_mode  # type: ignore[attr-defined]
    isolate(True)
    try:
        with activation.hooks(_in_memory, _accepting), _stores_for_ranks():
            yield
    finally:
        isolate(False)
        mesh.get_backend = get_backend
        if attach is not None:
            module._maybe_attach_flight_recorder = attach
        module._world, module.BackendConfig = world, config
        plugins.pop(_PLUGIN, None)
        sys.excepthook = hook


@contextmanager
def _stores_for_ranks() -> Iterator[None]:
    """Have the stores that a program makes be the ranks' own: whoever waits in another waits with its turn."""
    names: dict[str, Callable[..., Any]] = {"TCPStore": _tcp_store, "FileStore": _file_store, "rendezvous": _rendezvous}
    replaced = []
    for module in (dist, distributed_c10d):
        for name, own in names.items():
            if hasattr(module, name):
                original = getattr(module, name)
                replaced.append((module, name, original))
                setattr(module, name, _for_ranks(original, own))
    try:
        yield
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)


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


def know_groups_of(rank: TorchRank) -> None:
    """Have C++ know the groups of a rank in a thread that it has started."""
    for group, name in list(rank.tables.pg_names.items()):
        _register_process_group(name, group)


def of_thread(rank: RankThreads) -> TorchRank:
    """What torch knows of a rank; raises KeyError for a rank of another run."""
    found: TorchRank = rank.values[torch_ranks]
    return found
