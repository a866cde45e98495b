"""The recording of this process: its mode, its folder and the recorder that writes the black box."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

import torch.distributed as dist

from simcoll.blackbox.header import created_ns
from simcoll.core.clock import now_ns
from simcoll.core.rank_local import RankLocal
from simcoll.core.record import Group
from simcoll.recorder.failures import watch_end_of_child
from simcoll.recorder.recorder import Recorder, box_name
from simcoll.values.choice import Choice, budget_wanted


class GroupPipeline(Protocol):
    """The pipeline that carries out the calls of one group."""

    def await_launches(self) -> None:
        """Return when no call waits for its launch."""
        ...

    def finish(self) -> None:
        """Say that no call follows, without waiting."""
        ...

    def close(self, seconds: float) -> None:
        """Let queued calls finish within ``seconds``."""
        ...


class Session:
    """One activation: the mode, the folder of black boxes, and the recorder of each process that runs under it."""

    def __init__(self, mode: str, out: Path | None = None, values: str = "off") -> None:
        """``values`` selects the calls whose values are checked: ``off``, ``sample`` or ``all``."""
        self.mode = mode
        self.values = values
        # Half of the budget is for the replicas of models.
        self.choice = None if values == "off" else Choice(values, budget_wanted() / 2)
        self._out = out
        self._started_in = Path() if out else Path.cwd()
        self._since_ns = now_ns()

    @property
    def out(self) -> Path:
        """The folder of the black boxes.

        Where none was given, a launcher's variables name it when the first group is made and not before: Lightning
        sets them in the process that it starts the others from, which is a rank itself, long after torch's import.
        """
        return self._out or self._started_in / _default_out(os.environ)

    def recorder(self, group: Group, group_rank: int) -> Recorder:
        """The recorder of this process, which is a rank of ``group``."""
        return self._recorder_of(_own_place(group, group_rank))

    def current_recorder(self) -> Recorder | None:
        """The recorder of this process, if it has one, or if it is a rank that has made no group yet."""
        existing = self.existing_recorder()
        if existing is not None or os.environ.get(_OWNER) != str(os.getpid()):
            return existing
        place = _known_place()
        if place is None or (not dist.is_initialized() and self._is_recorded_by_another(place[0])):
            return None
        return self._recorder_of(place)

    def existing_recorder(self) -> Recorder | None:
        """The recorder of this process, if it has one."""
        return _recorders.get((os.getpid(), self.out))

    def _is_recorded_by_another(self, rank: int) -> bool:
        """True if a process that this one has started is the rank: this one is a launcher in a rank's place."""
        return created_ns(self.out / box_name(rank)) > self._since_ns

    def _recorder_of(self, place: tuple[int, int]) -> Recorder:
        with _recorders_lock:
            self._out = self.out
            key = os.getpid(), self._out
            if key not in _recorders:
                _recorders[key] = Recorder(self.out, self.mode, *place)
                watch_end_of_child(self.existing_recorder)
            return _recorders[key]


def _default_out(environment: Mapping[str, str]) -> Path:
    """A folder that all ranks of a job agree on without asking each other."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT"):
        if environment.get(name, "none") != "none":
            return Path("simcoll-out") / f"job-{environment[name]}"
    return Path("simcoll-out") / "job"


pipelines: RankLocal[WeakSet[GroupPipeline]] = RankLocal(WeakSet)
"""Those of every group that is still there, to be brought to an end with the process (or the rank)."""

# One black box a process and folder, shared by all that record in it.
_recorders: dict[tuple[int, Path], Recorder] = {}
_recorders_lock = threading.Lock()


def own_recorders() -> list[Recorder]:
    """Every recorder of this process, and none that it inherited from the one that forked it."""
    return [recorder for (pid, _), recorder in _recorders.items() if pid == os.getpid()]


_OWNER = "SIMCOLL_RANK_PID"
"""The process that a launcher made a rank; those that it starts inherit its rank, and are none."""


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

    The default group is the whole job and more reliable than the environment, which a spawned process inherits.
    """
    known = _known_place()
    stated = group.ranks[group_rank], max(group.ranks) + 1
    whole = group.description == "default_pg" and not dist.is_initialized()
    return stated if known is None or whole or known[1] < stated[1] else known


active: RankLocal[Session | None] = RankLocal(lambda: None)
"""The session that groups record in, or None: for the calls of groups, which look it up every time."""


def active_session() -> Session | None:
    """The session that new groups record in, or None."""
    return active.here


def activate(session: Session | None) -> None:
    """Make ``session`` the one that groups record in; None: groups go on unrecorded."""
    active.set(session)


unrecorded: list[Callable[[], bool]] = []
"""Tests of the threads whose calls are passed on as they are; mostly empty, the only cost of a call."""


@contextmanager
def unrecorded_where(test: Callable[[], bool]) -> Iterator[None]:
    """Pass the calls of threads for which ``test`` holds on as they are, as long as the block lasts."""
    unrecorded.append(test)
    try:
        yield
    finally:
        unrecorded.remove(test)


def is_unrecorded() -> bool:
    """True if the call that this thread makes is to be passed on as it is."""
    return any(test() for test in tuple(unrecorded))


def claim_rank() -> None:
    """Note that this process is the rank that the environment names; its child processes inherit the note."""
    if "RANK" in os.environ:
        os.environ.setdefault(_OWNER, str(os.getpid()))
