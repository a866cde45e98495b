"""torch.distributed for a rank without peers: fake groups and stores in memory, whatever the program asks for.

The changes are permanent: the process was forked to be a rank of a dry run.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.cuda import nccl
from torch.distributed import device_mesh, distributed_c10d

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.event_kinds import SIZED_BY_OTHERS, THREAD
from simcoll.dryrun.rank.fake_device import real_devices
from simcoll.dryrun.rank.fake_group import Answer, FakeProcessGroup
from simcoll.dryrun.rank.fake_store import FakeFileStore, FakeStore, FakeTCPStore, StoreLogs, let_prefixed_stores_queue
from simcoll.dryrun.rank.known_inputs import GroupInputs, InputsFile
from simcoll.dryrun.rank.script_launch import RankOfScript
from simcoll.dryrun.rank.sent_values import OBJECT_COLLECTIVES, GroupMessages, SharedObjects
from simcoll.dryrun.rank.shared_files import GroupFiles, SharedFiles
from simcoll.dryrun.rank.taint import TaintTracker, has_tainted_size
from simcoll.recorder.arguments import Arguments, arguments
from simcoll.recorder.session import Session, active_session
from simcoll.spec.call import Call
from simcoll.spec.collectives import METHODS, spec_of
from simcoll.spec.semantics import Array, Outputs
from simcoll.spec.table import Kind
from simcoll.wrapper import hooks as activation
from simcoll.wrapper.pipeline import Pipeline
from simcoll.wrapper.python_group import RecordedPythonGroup

if TYPE_CHECKING:
    from simcoll.dryrun.rank.flop_counter import WorkCounter

_PLUGIN = "SIMCOLL_FAKE"
_one_at_a_time = threading.RLock()
_NOTHING = object()
"""Stands in for an object that another rank would have sent."""

_hooks: list[object] = []
"""Never removed: the replaced functions would be restored when the hooks are collected."""


class ThreadSwitches:
    """Records which of the program's threads makes the calls that follow: a thread that waits blocks no other.

    The threads that C++ makes for a backward pass count as the main thread: it waits for them.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._last = 0

    def note(self, pipeline: Pipeline | None) -> None:
        """Record a switch if the calling thread, which is about to make a call, is not the last one."""
        number = self._number(threading.current_thread())
        if number != self._last and pipeline is not None:
            self._last = number
            pipeline.log.recorder.event(THREAD, number=number)

    def _number(self, thread: threading.Thread) -> int:
        if thread is threading.main_thread() or isinstance(thread, threading._DummyThread):
            return 0
        # Thread ids are reused; the object's own id is not, while it lives.
        return self._numbers.setdefault(id(thread), len(self._numbers) + 1)


class RecordedFakeGroup(RecordedPythonGroup):
    """The recorded group around a fake one; also records which calls have tainted sizes."""

    taint: TaintTracker
    counter: WorkCounter | None = None
    caller: ThreadSwitches
    files: GroupFiles | None = None
    objects: SharedObjects | None = None

    def _quick_way(self) -> None:
        """None: every call takes the way of :meth:`_collective`."""

    def _collective(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # An operator of torch may have led here, which sees the real devices; records have the program's.
        with _one_at_a_time, real_devices(enabled=False):
            self.caller.note(self._pipeline)
            if self.files is None or METHODS[name][0].kind is Kind.POINT_TO_POINT:
                return self._call(name, args, kwargs)
            count = self.files.before()
            result = self._call(name, args, kwargs)
            self.files.after(count)
            return result

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A number by itself is a peer, root or tag.
        sized = [value for value in (*args, *kwargs.values()) if not isinstance(value, int)]
        objects = bool(self.taint.paused) and not _are_counts(arguments(name, args, kwargs))
        marked = objects or has_tainted_size(sized)
        result = super()._collective(name, args, kwargs)
        pipeline = self._pipeline
        if pipeline is None:
            return result
        spec, (sequence, message) = METHODS[name][0], pipeline.log.place
        key = pipeline.log.group.name, sequence, message if spec.kind is Kind.POINT_TO_POINT else 0
        if marked:
            pipeline.log.recorder.event(
                SIZED_BY_OTHERS,
                group=key[0],
                sequence=sequence,
                message=key[2],
                op=spec.name,
                objects=objects,
            )
        if self.counter is not None:
            written = arguments(name, args, kwargs).tensors
            outputs = [*written.get("inout", ()), *written.get("outputs", ())]
            self.counter.called(key, result, outputs, coalescing=self._section is not None)
        return result


def _are_counts(found: Arguments) -> bool:
    """True for the sizes that an object collective sends ahead: one a rank or an object, whatever the objects are."""
    call = found.call()
    return {buffer.dtype for buffer in (*call.inputs, *call.outputs)} == {"int64"}


class FakeBackendConfig(distributed_c10d.BackendConfig):
    """The backend of each device: the fake one, under the name that the program asks for."""

    def get_device_backend_map(self) -> dict[str, Any]:
        """The backend of each device."""
        asked: dict[str, Any] = super().get_device_backend_map()
        return dict.fromkeys(asked, _PLUGIN.lower())


def install_fake_distributed(
    patches: Patches,
    launch: RankOfScript,
    inputs: InputsFile,
    counter: WorkCounter | None,
    files: SharedFiles | None,
    *,
    ends_loops: bool,
) -> TaintTracker:
    """Make this process the rank of ``launch`` without peers; simcoll must record already.

    ``inputs`` saves inputs, and knows those of the pass before; ``counter`` is called with every call; ``files`` gets
    those of other ranks as collectives are made. ``ends_loops``: see :class:`TaintTracker`.
    """
    session = active_session()
    taint = TaintTracker(lambda: None if session is None else session.current_recorder(), ends_loops=ends_loops)
    taint.install(patches)
    FakeStore.taint = taint
    let_prefixed_stores_queue(patches)
    dist.Backend._plugins[_PLUGIN] = dist.Backend._BackendPlugin(_creator(session, taint, inputs, counter, files), True)
    patches.replace(distributed_c10d, "BackendConfig", FakeBackendConfig)
    # From torch 2.15 on, a Python group that has a device is taken for a C++ one.
    patches.replace(distributed_c10d, "_maybe_attach_flight_recorder", lambda *args: None)
    launch.install(patches)
    hooks = activation.hooks(_with_own_store, lambda initialise: _with_own_rank(initialise, launch))
    hooks.__enter__()
    _hooks.append(hooks)
    for name, kind in (("TCPStore", FakeTCPStore), ("FileStore", FakeFileStore)):
        _replace(patches, name, kind)
    _replace(patches, "rendezvous", lambda *args, **kwargs: iter([(FakeTCPStore(), launch.rank, launch.world_size)]))
    _fake_object_collectives(patches, taint)
    if not torch.cuda.is_available() and not hasattr(torch._C, "_nccl_version"):
        # c10d asks for it where a call of an NCCL group raises, and would lose the exception. Fake GPUs come with
        # a fake version, which programs expect of them.
        patches.replace(nccl, "version", lambda: (0, 0, 0))
    return taint


def _answering(taint: TaintTracker, group: GroupInputs, messages: GroupMessages | None) -> Answer:
    def answer(call: Call, tensors: Sequence[torch.Tensor], inputs: Sequence[Array]) -> tuple[Outputs, bool] | None:
        if taint.paused:
            return None
        guessed = any(map(taint.is_tainted, tensors))
        if messages is not None and spec_of(call).kind is Kind.POINT_TO_POINT:
            return messages.answer(call, inputs, guessed=guessed)
        return group.answer(call, inputs, guessed=guessed)

    return answer


def _creator(
    session: Session | None,
    taint: TaintTracker,
    inputs: InputsFile,
    counter: WorkCounter | None,
    files: SharedFiles | None,
) -> Callable[[Any, Any], RecordedFakeGroup]:
    """The function by which c10d makes a group's backend."""
    threads = ThreadSwitches()
    sent = None if files is None else files.sent_values(inputs.note_sent)
    if sent is not None:
        FakeStore.sent, FakeStore.logs = sent, StoreLogs(sent)
    trusted = inputs.known is None or inputs.known.trusted

    def create(options: Any, backend_options: Any) -> RecordedFakeGroup:
        size, place = options.group_size, options.group_rank
        members = tuple(options.global_ranks_in_group) or tuple(range(size))
        given = inputs.of_group(members, place)
        messages = None if sent is None else GroupMessages(sent, given.name, members, place, trusted=trusted)
        inner: Any = FakeProcessGroup(
            place,
            size,
            store=options.store,
            name="gloo",
            taint=taint.taint,
            blank=lambda: bool(taint.paused),
            answer=_answering(taint, given, messages),
            has_next=(lambda call, peer: False) if messages is None else messages.has_next,
        )
        group = RecordedFakeGroup(options.store, place, size, inner=inner)
        group.taint, group.caller, group.counter = taint, threads, counter
        group.record_in(session, members=members, timeout=options.timeout)
        if files is not None and size > 1:
            group.files = files.of_group(members)
            group.objects = None if sent is None else SharedObjects(sent, given.name, members, place)
            group.files.after(group.files.before())  # all members meet where they create the group
        return group

    return create


def _with_own_rank(initialise: Callable[..., Any], launch: RankOfScript) -> Callable[..., Any]:
    """``init_process_group`` that checks the rank and world size against those of the dry run."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        given["rank"], given["world_size"] = launch.place(given)
        return initialise(**given)

    return init_process_group


def _with_own_store(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group`` with a store in memory in place of the one that the program names."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        given |= {"store": FakeTCPStore(), "init_method": None}
        given.pop("device_id", None)
        # torch leaves rank and size of such a group to MPI: it is made as another one, and gets its name then.
        by_mpi = str(given.get("backend")).lower() == dist.Backend.MPI
        initialise(**given | ({"backend": dist.Backend.GLOO} if by_mpi else {}))
        if by_mpi:
            groups, made = distributed_c10d._world.pg_map, distributed_c10d._get_default_group()
            groups[made] = dist.Backend.MPI, groups[made][1]

    return init_process_group


def _replace(patches: Patches, name: str, value: Any) -> None:
    for module in (dist, distributed_c10d, device_mesh):
        patches.replace(module, name, value)


def _fake_object_collectives(patches: Patches, taint: TaintTracker) -> None:
    """Let object collectives return what others have sent; where that is unknown, this rank's own objects.

    Lists that another rank would fill then stay unchanged.
    """
    patches.wrap(
        distributed_c10d,
        "_tensor_to_object",
        lambda unpack: lambda tensor, size, *rest: unpack(tensor, size, *rest) if int(size) else _NOTHING,
    )
    for name in OBJECT_COLLECTIVES:
        if (function := getattr(distributed_c10d, name, None)) is not None:
            _replace(patches, name, _object_collective(function, taint))


def _object_collective(function: Callable[..., Any], taint: TaintTracker) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list)]
        before = [list(value) for value in lists]
        taint.paused += 1
        try:
            result = function(*args, **kwargs)
        finally:
            taint.paused -= 1
            missing = [_restored(value, old) for value, old in zip(lists, before, strict=True)]
        given = signature.bind(*args, **kwargs).arguments
        group = given.get("group") or distributed_c10d._get_default_group()
        objects: SharedObjects | None = getattr(group, "objects", None)
        known = not any(missing) if objects is None else objects.exchange(function.__name__, given)
        if not known:
            taint.note_missing_objects()
        return result

    return call


def _restored(values: list[Any], before: Sequence[Any]) -> bool:
    """Restore the objects in whose place nothing was received; returns whether there were any."""
    missing = [place for place, value in enumerate(values) if value is _NOTHING]
    for place in missing:
        values[place] = before[place]
    return bool(missing)
