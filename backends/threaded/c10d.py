"""torch.distributed for ranks that are threads: the engine runs their groups, whatever backend they ask for."""

from __future__ import annotations

import functools
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
from simcoll.backends.threaded.rendezvous import accept_default_group, replace_stores, with_rank_store
from simcoll.core.patches import Patches
from simcoll.core.record import Group
from simcoll.spec.call import Call
from simcoll.wrapper import hooks
from simcoll.wrapper.python_group import RecordedPythonGroup

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
    """Whether a module of torch asks while it is imported: the default that it takes then is every rank's."""
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
    """Which backend serves which device: for ranks always the engine, under the name that the program asks for."""

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
    patches.wrap(device_mesh, "get_backend", functools.partial(_for_ranks, "threaded"))
    # From torch 2.15 on, a Python group that has a device is taken for a C++ one.
    patches.wrap(distributed_c10d, "_maybe_attach_flight_recorder", functools.partial(_for_ranks, None))
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


def _for_ranks(answer: object, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns ``answer`` in threads of ranks, and works as before elsewhere."""
    return lambda *args: answer if torch_ranks.here is not None else original(*args)
