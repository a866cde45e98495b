"""Turns recording on and off in this process.

Activation replaces one name: ``ProcessGroup`` where torch.distributed makes groups. It is lazy: nothing is written
and no thread started before a group makes its first call, so that it may happen before the process that will be a
rank is forked.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch.distributed as dist
from torch._C._distributed_c10d import (
    DebugLevel,
    ProcessGroup,
    Store,
    _register_process_group,
    _unregister_process_group,
)
from torch.distributed import distributed_c10d

from simcoll.conductor import Conductor
from simcoll.errors import ConfigurationError
from simcoll.failures import install_failure_hooks, remove_failure_hooks
from simcoll.process_group import RecordedProcessGroup, wrap_backend
from simcoll.record import Group
from simcoll.recorder import Recorder, box_name

_DRAIN_SECONDS = 2.0
"""How long the end of the process waits for calls that nobody waited for."""

MODES = ("off", "record", "detail")


class Session:
    """One activation: the mode, where black boxes go, and the recorder of each process that runs under it."""

    def __init__(self, mode: str, out: Path) -> None:
        self.mode = mode
        self.out = out
        self.conductors: WeakSet[Conductor] = WeakSet()
        self._recorder: Recorder | None = None
        self._pid = 0
        self._since = time.time()
        self._lock = threading.Lock()

    def recorder(self, group: Group, group_rank: int) -> Recorder:
        """The recorder of this process, which is a rank of ``group``."""
        return self._recorder_of(_own_place(group, group_rank))

    def current_recorder(self) -> Recorder | None:
        """The recorder of this process, if it is known to be a rank."""
        if self._recorder is not None and self._pid == os.getpid():
            return self._recorder
        place = _known_place()
        return None if place is None or self._taken(place[0]) else self._recorder_of(place)

    def _taken(self, rank: int) -> bool:
        """Whether a child of this process, which inherited its rank, writes the box of that rank already."""
        try:
            return (self.out / box_name(rank)).stat().st_mtime > self._since
        except OSError:
            return False

    def _recorder_of(self, place: tuple[int, int]) -> Recorder:
        with self._lock:
            if self._recorder is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._recorder = self._shared() or Recorder(self.out, self.mode, *place)
            return self._recorder

    def _shared(self) -> Recorder | None:
        """The active session's recorder, for a group that was wrapped on its own: one black box a process."""
        shares = _active is not None and _active is not self and _active.out == self.out
        return _active.current_recorder() if shares and _active is not None else None


def _known_place() -> tuple[int, int] | None:
    """The global rank of this process and the number of ranks: from torch, or else from the launcher's variables."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (rank, size) if 0 <= rank < size else None


def _own_place(group: Group, group_rank: int) -> tuple[int, int]:
    """The same, for a process that makes its first group.

    The default group is the whole job and knows better than the environment, which a spawned process inherits.
    """
    known = _known_place()
    stated = group.ranks[group_rank], max(group.ranks) + 1
    whole = group.description == "default_pg" and not dist.is_initialized()
    return stated if known is None or whole or known[1] < stated[1] else known


_active: Session | None = None


def active_session() -> Session | None:
    """The session that new groups record in, or None."""
    return _active


def enable(mode: str | None = None, out: str | os.PathLike[str] | None = None) -> None:
    """Record, and in ``detail`` mode prove, every collective from now on, of existing groups too.

    ``mode`` is ``record``, ``detail`` or ``off`` (default: the environment's ``SIMCOLL_MODE``, else ``detail``);
    ``out`` is the folder of the black boxes (default: ``SIMCOLL_OUT``, else a folder under ``simcoll-out``). Raises
    :class:`~simcoll.errors.ConfigurationError` on an unknown mode.
    """
    global _active
    mode = mode or os.environ.get("SIMCOLL_MODE") or "detail"
    if mode not in MODES:
        raise ConfigurationError(f"unknown mode {mode!r}: expected one of {', '.join(MODES)}")
    if mode == "off":
        disable()
        return
    _active = Session(mode, Path(out or os.environ.get("SIMCOLL_OUT") or _default_out()))
    _install()
    _adopt_existing()


def disable() -> None:
    """Make no more recorded groups; groups that exist go on working, unrecorded."""
    global _active
    _close()
    _active = None
    _uninstall()


def _default_out() -> Path:
    """A folder that all ranks of a job agree on without asking each other."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT"):
        if os.environ.get(name, "none") != "none":
            return Path("simcoll-out") / f"job-{os.environ[name]}"
    return Path("simcoll-out") / "job"


def wrap_process_group(
    pg: Any, *, store: Store | None = None, timeout: timedelta | float | None = None, mode: str = "detail"
) -> ProcessGroup:
    """Wrap one group explicitly.

    ``pg`` is a ``ProcessGroup`` or a bare backend such as ``ProcessGroupGloo``; ``store`` is where its ranks meet
    (a group's own by default), ``timeout`` how long a proof waits for a rank (the group's own by default).
    """
    if mode not in MODES:
        raise ConfigurationError(f"unknown mode {mode!r}: expected one of {', '.join(MODES)}")
    if mode == "off":
        return pg  # type: ignore[no-any-return]
    limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    session = Session(mode, _active.out if _active else Path(os.environ.get("SIMCOLL_OUT") or _default_out()))
    if type(pg) is RecordedProcessGroup:
        pg = pg.plain
    if isinstance(pg, ProcessGroup):
        return RecordedProcessGroup.adopt(pg, session, store=store, timeout=limit)
    if store is None:
        raise ConfigurationError(f"a bare {type(pg).__name__} has no store of its own: give store=")
    return wrap_backend(pg, session, store=store, timeout=limit)


def _create_process_group_wrapper(
    wrapped_pg: Any,
    store_prefix: str,
    store: Store,
    rank: int,
    world_size: int,
    timeout: timedelta | float = timedelta(minutes=30),
) -> Any:
    """Stands in for c10d's function of this name, which wraps a backend in the group of DETAIL."""
    return wrap_process_group(wrapped_pg, store=dist.PrefixStore(store_prefix, store), timeout=timeout)


def _debug_level() -> DebugLevel:
    """What c10d sees as its debug level where it makes groups: never DETAIL, whose wrapper would come in between."""
    level = dist.get_debug_level()
    if level != DebugLevel.DETAIL:
        return level
    _say_once("TORCH_DISTRIBUTED_DEBUG=DETAIL is set: simcoll takes the place of its process-group wrapper")
    return DebugLevel.INFO


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        sys.stderr.write(f"simcoll: {text}\n")


_replaced: list[tuple[Any, str, Any]] = []


def _install() -> None:
    if _replaced:
        return
    _replace(distributed_c10d, "ProcessGroup", RecordedProcessGroup)
    _replace(distributed_c10d, "get_debug_level", _debug_level)
    for module in (distributed_c10d, dist):
        _replace(module, "_create_process_group_wrapper", _create_process_group_wrapper)
    if (dist2 := _dist2()) is not None:
        _replace(dist2, "ProcessGroup", RecordedProcessGroup)
    install_failure_hooks(active_session)
    atexit.register(_close)


def _dist2() -> Any:
    """torch.distributed._dist2, which some versions of torch have."""
    try:
        from torch.distributed import _dist2
    except ImportError:
        return None
    return _dist2


def _replace(module: Any, name: str, value: Any) -> None:
    if hasattr(module, name):
        _replaced.append((module, name, getattr(module, name)))
        setattr(module, name, value)


def _uninstall() -> None:
    while _replaced:
        module, name, value = _replaced.pop()
        setattr(module, name, value)
    remove_failure_hooks()
    atexit.unregister(_close)


def _close() -> None:
    if _active is None:
        return
    for conductor in list(_active.conductors):
        conductor.close(_DRAIN_SECONDS)
    recorder = _active.current_recorder()
    if recorder is not None:
        recorder.event("exit")
        recorder.close()


def _adopt_existing() -> None:
    """Put recorded groups in the place of the plain ones that torch.distributed already knows."""
    world = distributed_c10d._world
    plain = [group for group in world.pg_map if type(group) is ProcessGroup]
    twins = {group: RecordedProcessGroup.adopt(group, None) for group in plain}
    default = distributed_c10d.GroupMember.WORLD
    tables: list[Any] = [world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag]
    for table in tables:
        for group, twin in twins.items():
            if group in table:
                table[twin] = table.pop(group)
    for groups in world.tags_to_pg.values():
        groups[:] = [twins.get(group, group) for group in groups]
    for twin in twins.values():
        _unregister_process_group(twin.group_name)
        _register_process_group(twin.group_name, twin)
    if default in twins:
        distributed_c10d._update_default_pg(twins[default])
