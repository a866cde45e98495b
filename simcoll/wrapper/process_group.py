"""The process group that simcoll puts underneath torch.distributed.

:class:`RecordedProcessGroup` stands where ``torch.distributed.distributed_c10d`` names ``ProcessGroup``. It keeps a
plain C++ group inside and gives it every call, so that backends, C++ callers (DDP's reducer, functional collectives)
and Python callers all go through one place. The C++ base class, which knows the same backends, answers every call that
is no collective.

A process group that is written in Python is given the store that C++ asks it for. Symmetric memory
(``CUDASymmetricMemory.cu``, ``NCCLSymmetricMemory.cu``) and NVSHMEM resolve a group by its name and meet in
``ProcessGroup::getStore()``, which is not virtual. Of the constructors that take a store, only torch 2.15's makes a
group that C++ calls back; before it, such a group has none, and a rendezvous would follow a null pointer.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Store, Work
from torch.distributed import distributed_c10d

from simcoll.backends.base import Backend
from simcoll.backends.registry import known
from simcoll.core.rank_local import acting
from simcoll.core.record import Group
from simcoll.cuda.graphs import capture_of, open_captures
from simcoll.cuda.watcher import DeviceTimes, device_times
from simcoll.errors import CollectiveMismatchError, MissingRankError
from simcoll.recorder.arguments import USUAL_FORMS, Arguments, arguments, read_usual
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.recorder.group_creation import declared_members
from simcoll.recorder.quick import Quick
from simcoll.recorder.recorder import GroupLog
from simcoll.recorder.session import Session, active, active_session, is_unrecorded, pipelines, unrecorded
from simcoll.spec.collectives import METHODS
from simcoll.wrapper.modes import keep_for_good, pipeline_of
from simcoll.wrapper.pipeline import Pipeline

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_DRAIN_SECONDS = 2.0
_ABORT_SECONDS = 0.1
"""The times that shutdown, and abort, wait for calls that are queued."""


class _AnyProcessGroup(type(ProcessGroup)):  # type: ignore[misc]
    """Lets ``isinstance(group, ProcessGroup)`` hold for plain C++ groups where the name means the recorded one; and
    ``issubclass`` for groups that a program has written in Python, by which torch knows what a registered backend made.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ProcessGroup)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, ProcessGroup)


class RecordedProcessGroup(ProcessGroup, metaclass=_AnyProcessGroup):
    """A ``torch.distributed.ProcessGroup`` whose calls are recorded and, in ``detail`` mode, proved."""

    def __init__(self, store: Store, rank: int, size: int, *, inner: ProcessGroup | None = None) -> None:
        try:
            super().__init__(store, rank, size)
        except TypeError:
            # Before torch 2.15 only this constructor of the base class routes C++ callers to Python.
            super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs know one constructor
            lend_store(self, store)
        self._inner = ProcessGroup(store, rank, size) if inner is None else inner
        self._store: Store | None = store
        self._session: Session | None = None
        self._pipeline: Pipeline | None = None
        self._quick: Quick | None = None
        """The quick way of calls, while there is one."""
        self._pipeline_session: Session | None = None
        self._members: tuple[int, ...] | None = declared_members.here
        self._limit: timedelta | None = None
        self._section: torch.device | None = None
        self._left = False
        self._reconfigured = False
        self._captured = False
        self._making = threading.Lock()

    # The hash of the plain group, so that a group that was already in use is found under its old handle.
    def __hash__(self) -> int:
        return hash(self._inner)

    def __eq__(self, other: object) -> bool:
        return self is other or self._inner is other

    @classmethod
    def adopt(
        cls,
        plain: ProcessGroup,
        session: Session | None,
        *,
        store: Store | None = None,
        members: Sequence[int] | None = None,
        timeout: timedelta | None = None,
    ) -> RecordedProcessGroup:
        """Put a recorded group around a plain one that exists already."""
        group = cls(store if store is not None else _store_of(plain), plain.rank(), plain.size(), inner=plain)
        known = distributed_c10d._world.pg_group_ranks.get(plain)
        if members is None:
            # The ranks that the backend of a split or merged group states are not reliable (torch 2.13).
            members = range(plain.size()) if known is None else sorted(known, key=lambda rank: known[rank])
        group.record_in(session, members=members, timeout=timeout)
        if plain.bound_device_id is not None:
            # First: a group that takes a backend over binds it to its own device, or to none.
            _set_base_device(group, plain.bound_device_id)
        for device in plain._device_types:
            backend = plain._get_backend(device)
            ProcessGroup._register_backend(group, device, _type_in(plain, device, backend), backend)
        ProcessGroup._set_default_backend(group, _backend_type(plain._get_backend_name()))
        if plain.group_name:
            ProcessGroup._set_group_name(group, plain.group_name)
        if plain.group_desc:
            ProcessGroup._set_group_desc(group, plain.group_desc)
        return group

    def record_in(
        self, session: Session | None, *, members: Sequence[int] | None = None, timeout: timedelta | None = None
    ) -> None:
        """Record in ``session`` (None: in whichever is active at the first call); ``members`` are global ranks."""
        self._session = session
        self._members = None if members is None else tuple(members)
        self._limit = timeout

    @property
    def plain(self) -> ProcessGroup:
        """The C++ group inside."""
        return self._inner

    @property
    def collectives_made(self) -> int | None:
        """The number of collectives that this rank has made in the group; None where they are not recorded."""
        return None if self._pipeline is None else self._pipeline.log.place[0]

    def want_sum(self, *, wanted: bool) -> None:
        """Have the values of the next gradients that are added up checked; or no longer."""
        if self._pipeline is not None and (values := self._pipeline.log.values) is not None:
            values.want_sum(wanted=wanted)

    # Setting up: the base class and the group inside know the same.

    def _register_backend(self, device: torch.device, backend_type: Any, backend: Any = None) -> None:
        super()._register_backend(device, backend_type, backend)
        self._inner._register_backend(device, backend_type, backend)

    def _set_default_backend(self, backend_type: Any) -> None:
        super()._set_default_backend(backend_type)
        self._inner._set_default_backend(backend_type)

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        self._inner._set_group_name(name)

    def _set_group_desc(self, desc: str) -> None:
        super()._set_group_desc(desc)
        self._inner._set_group_desc(desc)
        # c10d sets this last: the group is complete, and is written down even if it never makes a call.
        if (session := self._session or active_session()) is not None:
            self._make_pipeline(session, being_made=True)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of every backend of the group."""
        self._inner.set_timeout(timeout)

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that the group was bound to."""
        return self._inner.bound_device_id

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        _set_base_device(self, device)
        self._inner.bound_device_id = device

    def get_group_store(self) -> Store:
        """The store of the group."""
        return self._inner.get_group_store()

    # Groups made from this one.

    def split_group(  # type: ignore[override]  # C++ knows the first argument by another name than torch's stubs
        self, ranks: list[int], *args: Any, **kwargs: Any
    ) -> ProcessGroup | None:
        """Split as the group inside does; the new group is recorded too."""
        plain = self._inner.split_group(ranks, *args, **kwargs)
        if plain is None:
            return None
        members = self._global_ranks()
        return self._adopt_made(plain, members=[members[rank] for rank in ranks])

    def merge_remote_group(self, store: Store, size: int, *args: Any, **kwargs: Any) -> ProcessGroup:
        """Merge as the group inside does; the new group is recorded too."""
        plain = self._inner.merge_remote_group(store, size, *args, **kwargs)
        return self._adopt_made(plain, store=store)

    def _adopt_made(
        self, plain: ProcessGroup, *, store: Store | None = None, members: Sequence[int] | None = None
    ) -> RecordedProcessGroup:
        """Record a group that the one inside has made just now, in this thread."""
        group = RecordedProcessGroup.adopt(plain, self._session, store=store, members=members)
        if (session := self._session or active_session()) is not None:
            group._make_pipeline(session, being_made=True)
        return group

    # Ending.

    def shutdown(self) -> None:
        """Finish the queued calls, within bounds, then shut the backends down; raises a mismatch that is found then."""
        self._end()
        self._inner.shutdown()
        if self._pipeline is not None:
            self._pipeline.raise_due()

    def abort(self) -> None:
        """Give up the queued calls, then abort the backends."""
        self.give_up()
        self._inner.abort()

    def give_up(self) -> None:
        """Launch no call that waits for its proof."""
        if self._pipeline is not None:
            self._pipeline.give_up()
        self._end(_ABORT_SECONDS)

    def _end(self, seconds: float = _DRAIN_SECONDS) -> None:
        self._quick = None
        if self._pipeline is not None:
            self._pipeline.close(seconds)
        if self._captured:
            # A graph that is freed after the group calls its NCCL backend (torch 2.15), which must still be there.
            self._captured = False
            keep_for_good(self._inner)

    def reconfigure(self, opts: Any) -> Work:
        """Give the backend other peers (torch 2.15): the new peers are unknown, so recording ends here."""
        if not self._reconfigured:
            self._reconfigured = True
            self._end()
            sys.stderr.write(f"simcoll: process group {self.group_name} gets other ranks: it is recorded up to here\n")
        return self._inner.reconfigure(opts)  # type: ignore[attr-defined,no-any-return]

    # Calls.

    def _start_coalescing(self, device: torch.device) -> None:
        if (pipeline := self._pipeline_here()) is not None:
            # A call that its thread launches while a section is open would be taken for one of the section.
            pipeline.await_launches()
            pipeline.raise_due()
            pipeline.begin_section()
        self._inner._start_coalescing(device)
        self._section, self._left, self._quick = device, False, None

    def _end_coalescing(self, device: torch.device) -> Work | None:  # type: ignore[override]  # as NCCL's own
        if self._left:
            self._left = False
            return None
        self._section, self._quick = None, self._quick_way()
        launch = functools.partial(self._inner._end_coalescing, device)
        # Without a pipeline nothing was recorded.
        if self._pipeline is None:
            return launch()
        return self._pipeline.end_section(launch)

    def _leave_section(self) -> None:
        """A call was not launched and raises: c10d's coalescing manager ends no section then, and NCCL would take all
        later calls for a part of it. The earlier calls of the section have been proved, and run.
        """
        if (device := self._section) is not None:
            with contextlib.suppress(RuntimeError):
                self._end_coalescing(device)
        self._section, self._left = None, True
        distributed_c10d._world.pg_coalesce_state.pop(self, None)

    # The names by which newer versions of torch reach a Python group from C++.
    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    def _collective(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the c10d method ``name``; arguments of no known form are left to torch to refuse."""
        method = getattr(self._inner, name)
        if (pipeline := self._pipeline_here()) is None:
            return method(*args, **kwargs)
        read = None if kwargs else read_usual(name, args)
        launch = functools.partial(method, *args, **kwargs)
        try:
            found = arguments(name, args, kwargs, read)
        except (TypeError, ValueError, KeyError):
            return launch()
        peer = found.integers.get("peer")
        if peer is not None and not 0 <= peer < self.size():
            # Gloo would use memory beyond its list of peers.
            launch = functools.partial(_refuse_peer, name, peer, self.size())
        if not found.tensors:
            found.place = self._place(found)
        if open_captures and (captured := capture_of(found, self._device_types)) is not None:
            self._captured = True
            return pipeline.capture(found, launch, captured.calls)
        if self._section is None:
            return pipeline.run(found, launch)
        # A call inside a coalesced section is launched by the section's thread.
        found.asynchronous = False
        try:
            return pipeline.run(found, launch, coalescing=True)
        except (CollectiveMismatchError, MissingRankError):
            self._leave_section()
            raise

    def _place(self, found: Arguments) -> torch.device | None:
        """The GPU on which a barrier runs: the one it names, or else that of the group, or of this thread.

        NCCL falls back on the GPU that the group has used, which is that of the thread in all but odd programs.
        """
        device = getattr(found.options, "device", None)
        if device is None and "nccl" not in self._inner._get_backend_name():
            return None
        if device is not None and device.type != "cuda":
            return None
        if numbers := getattr(found.options, "device_ids", None):
            return torch.device("cuda", numbers[0])
        if device is not None and device.index is not None:
            return torch.device(device.type, device.index)
        return self._inner.bound_device_id or torch.device("cuda", torch.cuda.current_device())

    def _pipeline_here(self) -> Pipeline | None:
        """The pipeline that carries out the group's calls; None if calls are not recorded."""
        session = self._session or active.here
        if session is None or self._reconfigured or (unrecorded and is_unrecorded()):
            return None
        if self._pipeline is None or self._pipeline_session is not session:
            return self._make_pipeline(session)
        return self._pipeline

    def _make_pipeline(self, session: Session, *, being_made: bool = False) -> Pipeline:
        """Made when c10d has made the group, or with the group's first call in a session."""
        with self._making:
            if self._pipeline is None or self._pipeline_session is not session:
                group = Group(self.group_name or "", self.group_desc or "", self._global_ranks())
                recorder, rank = session.recorder(group, self.rank()), self.rank()
                log = GroupLog(recorder, group, rank, self._known_backends(), session.choice)
                self._quick = None
                self._pipeline = self._new_pipeline(log, session.mode, being_made)
                self._pipeline_session = session
                if self._section is None:
                    self._quick = self._quick_way()
                pipelines.here.add(self._pipeline)
            return self._pipeline

    def _quick_way(self) -> Quick | None:
        """The quick way of calls into the pipeline that the group has, if there is one."""
        if self._pipeline is None or acting:
            return None
        return self._pipeline.quick(active if self._session is None else None, self._pipeline_session)

    def _new_pipeline(self, log: GroupLog, mode: str, being_made: bool) -> Pipeline:
        timeout = _timeout_of(self)
        return pipeline_of(mode, log, self._times(), self._inner, self._store, timeout, being_made=being_made)

    def _times(self) -> DeviceTimes | None:
        on_streams = any(backend.on_streams for backend in self._known_backends().values())
        return device_times() if on_streams else None

    def _known_backends(self) -> dict[str, Backend]:
        """Returns the known limits of this group's backends, by device type."""
        names = {device.type: self._inner._get_backend(device).name() for device in self._device_types}
        bound = self.bound_device_id is not None
        found = {device: known(name, os.environ, bound=bound) for device, name in names.items()}
        return {device: backend for device, backend in found.items() if backend is not None}

    def _global_ranks(self) -> tuple[int, ...]:
        """The members as global ranks, in group-rank order."""
        if self._members is None:
            known = distributed_c10d._world.pg_group_ranks.get(self)
            if known:
                self._members = tuple(sorted(known, key=lambda rank: known[rank]))
            else:
                self._members = self._backend_ranks() or tuple(range(self.size()))
        return self._members

    def _backend_ranks(self) -> tuple[int, ...] | None:
        for device in self._device_types:
            options = getattr(self._inner._get_backend(device), "options", None)
            ranks = tuple(getattr(options, "global_ranks_in_group", ()))
            if len(ranks) == self.size():
                return ranks
        return None


def to_plain(attach: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that attaches a C++ hook to a group: it gets the plain group inside, which makes the calls."""

    @functools.wraps(attach)
    def attached(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        plain = group.plain if type(group) is RecordedProcessGroup else group
        return attach(plain, *args, **kwargs)

    return attached


def _refuse_peer(method: str, peer: int, size: int) -> Any:
    raise ValueError(f"{method}: peer {peer} is no rank of this group of {size}; give a rank of the group, from 0")


def _recorded(name: str) -> Callable[..., Any]:
    usual = USUAL_FORMS.get(name)

    @functools.wraps(getattr(ProcessGroup, name), assigned=("__doc__",))
    def method(self: RecordedProcessGroup, *args: Any, **kwargs: Any) -> Any:
        if (quick := self._quick) is not None and usual is not None and not kwargs:
            work = quick.run(usual, args, getattr(self._inner, name), self._pipeline)  # type: ignore[arg-type]
            if work is not quick:
                return work
        return self._collective(name, args, kwargs)

    method.__name__ = name
    return method


def _on_both(name: str) -> Callable[..., None]:
    @functools.wraps(getattr(ProcessGroup, name), assigned=("__doc__",))
    def method(self: RecordedProcessGroup, *args: Any, **kwargs: Any) -> None:
        getattr(ProcessGroup, name)(self, *args, **kwargs)
        getattr(self._inner, name)(*args, **kwargs)

    method.__name__ = name
    return method


# The methods that this version of torch has.
for _name in METHODS:
    if hasattr(ProcessGroup, _name):
        setattr(RecordedProcessGroup, _name, _recorded(_name))
# Hooks of torch 2.15: C++ calls those of the group that it is given, which is mostly the one inside.
for _name in ("register_pre_hook", "register_post_hook", "unregister_pre_hook", "unregister_post_hook"):
    if hasattr(ProcessGroup, _name):
        setattr(RecordedProcessGroup, _name, _on_both(_name))
leave_class_uncompiled(RecordedProcessGroup)


def _timeout_of(group: RecordedProcessGroup) -> Callable[[], timedelta]:
    """The group's timeout, asked for without keeping the group alive: c10d frees a destroyed group at once, and Gloo's
    threads do not survive being freed at the end of the interpreter.
    """
    known = weakref.ref(group)

    def timeout() -> timedelta:
        alive = known()
        if alive is None:
            return _DEFAULT_TIMEOUT
        if alive._limit is not None:
            return alive._limit
        for device in alive._device_types:
            options = getattr(alive._inner._get_backend(device), "options", None)
            if options is not None:
                found = options._timeout
                return found if isinstance(found, timedelta) else timedelta(seconds=found)
        return _DEFAULT_TIMEOUT

    return timeout


def _set_base_device(group: ProcessGroup, device: torch.device | None) -> None:
    """Set the property of the C++ base class, which the subclass hides."""
    vars(ProcessGroup)["bound_device_id"].__set__(group, device)


def _store_of(plain: ProcessGroup) -> Store:
    return plain.get_group_store()


def _type_in(plain: ProcessGroup, device: torch.device, backend: Any) -> Any:
    """The type under which a group knows a backend; its name need not show it: ``nccl`` has several (torch 2.15)."""
    probe = ProcessGroup(plain.rank(), plain.size())  # type: ignore[call-arg]  # torch's stubs know one constructor
    if plain.bound_device_id is not None:
        probe.bound_device_id = plain.bound_device_id
    probe._register_backend(device, ProcessGroup.BackendType.CUSTOM, backend)
    address = probe._backend_id(ProcessGroup.BackendType.CUSTOM)
    for kind in ProcessGroup.BackendType.__members__.values():
        with contextlib.suppress(RuntimeError):
            if plain._backend_id(kind) == address:
                return kind
    return _backend_type(backend.name())


def _backend_type(name: str) -> Any:
    return distributed_c10d.Backend.backend_type_map.get(name.lower(), ProcessGroup.BackendType.CUSTOM)


def wrap_backend(
    backend: Any, session: Session | None, *, store: Store, timeout: timedelta | None
) -> RecordedProcessGroup:
    """Put a recorded group around a bare backend such as ``ProcessGroupGloo``, for every device that it serves."""
    group = RecordedProcessGroup(store, backend.rank(), backend.size())
    group.record_in(session, timeout=timeout)
    kind = _backend_type(backend.name())
    group._set_default_backend(kind)
    for device in ("cpu", "cuda") if backend.name() == "gloo" else ("cuda",):
        group._register_backend(torch.device(device), kind, backend)
    return group


_STORE = 16
"""The offset of ``store_`` in a ``c10d::ProcessGroup``, in bytes: behind the pointer to the virtual functions and the
counts of ``c10::intrusive_ptr_target`` (torch 2.11 to 2.15).
"""


def lend_store(group: ProcessGroup, store: Store | None) -> bool:
    """Have C++ find ``store`` in a group that was made without one; returns True if it does.

    A plain group is made with the store, and its reference moved over, so that no count changes. Neither is touched
    where its memory does not look as in the known versions.
    """
    if store is None or ProcessGroup.get_group_store(group) is not None:
        return False
    donor = ProcessGroup(store, group.rank(), group.size())
    theirs, ours = _field(donor), _field(group)
    if not theirs.value or ours.value:
        return False
    ours.value, theirs.value = theirs.value, 0
    if ProcessGroup.get_group_store(group) is store and ProcessGroup.get_group_store(donor) is None:
        return True
    ours.value, theirs.value = 0, ours.value
    return False


def _field(group: ProcessGroup) -> ctypes.c_uint64:
    address: int = group._id()  # type: ignore[attr-defined]  # not in torch's stubs
    return ctypes.c_uint64.from_address(address + _STORE)


def calls_made(group: Any) -> int | None:
    """The number of collectives that this rank has made in a group; None where the group is not recorded."""
    made: int | None = group.collectives_made if is_recorded(group) else None
    return made


def want_sum(group: Any, *, wanted: bool) -> None:
    """Have the values of the next gradients that a group adds up checked, in whatever call; or no longer."""
    if is_recorded(group):
        group.want_sum(wanted=wanted)


def is_recorded(group: Any) -> bool:
    """True unless a group is a plain one, or one that the program has written in Python, which may have no name."""
    return RecordedProcessGroup in type(group).__mro__
