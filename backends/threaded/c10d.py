"""torch.distributed for ranks that are threads: their groups are run by the engine, whatever backend is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import device_mesh, distributed_c10d

from simcoll.backends.engine.tensor_data import TensorData
from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.threaded.c10d_tables import TorchRank, torch_ranks
from simcoll.backends.threaded.process_group import ThreadedProcessGroup
from simcoll.backends.threaded.rendezvous import accepting, in_memory, stores_for_ranks
from simcoll.core.record import Group
from simcoll.spec.call import Call
from simcoll.wrapper import hooks
from simcoll.wrapper.python_group import RecordedPythonGroup

_PLUGIN = "SIMCOLL_RANKS"
_MEETING = Call("barrier", "barrier")


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
        if name == "default_pg":
            if _torch_is_imported_below():
                return None
            if rank.tables.default_pg is None:
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
        with hooks.hooks(in_memory, accepting), stores_for_ranks():
            yield
    finally:
        isolate(False)
        mesh.get_backend = get_backend
        if attach is not None:
            module._maybe_attach_flight_recorder = attach
        module._world, module.BackendConfig = world, config
        plugins.pop(_PLUGIN, None)
        sys.excepthook = hook
