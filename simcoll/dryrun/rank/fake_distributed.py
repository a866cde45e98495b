"""torch.distributed for a rank without peers: its groups are fake ones, whatever backend and store are asked for.

It changes the process for good, and is meant for one that was forked to be a rank of a dry run.

Whose the calls of a dry run's rank are, where its program has threads: one that waits holds up no other.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.cuda import nccl
from torch.distributed import device_mesh, distributed_c10d

from simcoll.dryrun.rank.event_kinds import SIZED_BY_OTHERS, THREAD
from simcoll.dryrun.rank.fake_device import truthfully
from simcoll.dryrun.rank.fake_group import Answer, FakeProcessGroup
from simcoll.dryrun.rank.known_inputs import GroupInputs, SmallInputs
from simcoll.dryrun.rank.spawned import SpawnedLaunch
from simcoll.dryrun.rank.taint import ReceivedValues, sized_by_others
from simcoll.recorder.arguments import arguments
from simcoll.recorder.session import Session, active_session
from simcoll.spec.call import Call
from simcoll.spec.semantics import Array, Outputs
from simcoll.spec.table import METHODS, Kind
from simcoll.wrapper import hooks as activation
from simcoll.wrapper.pipeline import Pipeline
from simcoll.wrapper.python_group import RecordedPythonGroup


class LoneThreads:
    """Notes in the record that the calls that follow are another thread's than those before.

    The threads that C++ makes for a backward pass are the main thread's: it waits for them.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._last = 0

    def note(self, pipeline: Pipeline | None) -> None:
        """The calling thread is about to make a call."""
        number = self._number(threading.current_thread())
        if number != self._last and pipeline is not None:
            self._last = number
            pipeline.log.recorder.event(THREAD, number=number)

    def _number(self, thread: threading.Thread) -> int:
        if thread is threading.main_thread() or isinstance(thread, threading._DummyThread):
            return 0
        # Thread ids are used again; the object's own number is not while it lives.
        return self._numbers.setdefault(id(thread), len(self._numbers) + 1)


if TYPE_CHECKING:
    from simcoll.dryrun.rank.flop_counter import WorkCounter

_PLUGIN = "SIMCOLL_FAKE"
_one_at_a_time = threading.RLock()
_STORE_TIMEOUT = timedelta(seconds=1)
_OBJECTS = (
    "all_gather_object",
    "gather_object",
    "send_object_list",
    "recv_object_list",
    "broadcast_object_list",
    "scatter_object_list",
)
_NOTHING = object()
"""Stands in for an object that another rank would have sent."""

_hooks: list[object] = []
"""Kept for good: what they have replaced is put back when they go."""


class LoneGroup(RecordedPythonGroup):
    """The recorded group around a fake one; notes which calls' sizes rest on received values."""

    received: ReceivedValues
    counter: WorkCounter | None = None
    caller: LoneThreads

    def _collective(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # An operator of torch's may have led here, which is told the truth of devices; records tell the program's.
        with _one_at_a_time, truthfully(told=False):
            self.caller.note(self._pipeline)
            return self._noted(name, args, kwargs)

    def _noted(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        marked = bool(self.received.paused) or sized_by_others((*args, *kwargs.values()))
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
                objects=bool(self.received.paused),
            )
        if self.counter is not None:
            written = arguments(name, args, kwargs).tensors
            outputs = [*written.get("inout", ()), *written.get("outputs", ())]
            self.counter.called(key, result, outputs, coalescing=self._section is not None)
        return result


class FakeBackendConfig(distributed_c10d.BackendConfig):
    """What backend serves which device: the fake one, under the name that was asked for."""

    def get_device_backend_map(self) -> dict[str, Any]:
        """Devices and backends."""
        asked: dict[str, Any] = super().get_device_backend_map()
        return dict.fromkeys(asked, _PLUGIN.lower())


class LoneStore(dist.HashStore):
    """Whatever store a program makes: keys in memory, that only this rank sets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.set_timeout(_STORE_TIMEOUT)
        self.host, self.port = "localhost", 29500


def be_alone(rank: int, size: int, small: SmallInputs, counter: WorkCounter | None = None) -> ReceivedValues:
    """Have this process be ``rank`` of ``size`` with nobody else there; simcoll records already.

    ``small`` writes inputs down, and knows those of a pass before; a ``counter`` is told of every call.
    """
    session = active_session()
    received = ReceivedValues(lambda: None if session is None else session.current_recorder())
    received.watch()
    module: Any = distributed_c10d
    dist.Backend._plugins[_PLUGIN] = dist.Backend._BackendPlugin(_creator(session, received, small, counter), True)
    module.BackendConfig = FakeBackendConfig
    # From torch 2.15 on, a group in Python that names a device is taken for one in C++.
    if hasattr(module, "_maybe_attach_flight_recorder"):
        module._maybe_attach_flight_recorder = lambda *args: None
    launch = SpawnedLaunch(rank, size)
    launch.take_over()
    hooks = activation.hooks(_in_memory, lambda initialise: _placed(initialise, launch))
    hooks.__enter__()
    _hooks.append(hooks)
    for name in ("TCPStore", "FileStore"):
        _replace(name, LoneStore)
    _replace("rendezvous", lambda *args, **kwargs: iter([(LoneStore(), rank, size)]))
    _carry_objects(received)
    if not torch.cuda.is_available() and not hasattr(torch._C, "_nccl_version"):
        # c10d asks for it where a call of a group that was to be NCCL's raises, and would lose the exception. Where
        # GPUs are pretended, so is a version that programs expect of them.
        nccl.version = lambda: (0, 0, 0)
    return received


def _answering(received: ReceivedValues, group: GroupInputs) -> Answer:
    def answer(call: Call, tensors: Sequence[torch.Tensor], inputs: Sequence[Array]) -> tuple[Outputs, bool] | None:
        if received.paused:
            return None
        return group.answer(call, inputs, guessed=any(map(received.holds, tensors)))

    return answer


def _creator(
    session: Session | None, received: ReceivedValues, small: SmallInputs, counter: WorkCounter | None
) -> Callable[[Any, Any], LoneGroup]:
    """What c10d calls to make a group's backend."""
    threads = LoneThreads()

    def create(options: Any, backend_options: Any) -> LoneGroup:
        size, place = options.group_size, options.group_rank
        members = tuple(options.global_ranks_in_group) or tuple(range(size))
        inner: Any = FakeProcessGroup(
            place,
            size,
            store=options.store,
            called="gloo",
            received=received.mark,
            blank=lambda: bool(received.paused),
            answer=_answering(received, small.of_group(members, place)),
        )
        group = LoneGroup(options.store, place, size, inner=inner)
        group.received, group.caller, group.counter = received, threads, counter
        group.record_in(session, members=members, timeout=options.timeout)
        return group

    return create


def _placed(initialise: Callable[..., Any], launch: SpawnedLaunch) -> Callable[..., Any]:
    """``init_process_group`` for the rank that this is; who says that it is another one has made no group."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        given["rank"], given["world_size"] = launch.place(given)
        return initialise(**given)

    return init_process_group


def _in_memory(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group`` of torch, with a store of this rank's own in place of whatever the program names."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        given |= {"store": LoneStore(), "init_method": None}
        given.pop("device_id", None)
        return initialise(**given)

    return init_process_group


def _replace(name: str, value: Any) -> None:
    for module in (dist, distributed_c10d, device_mesh):
        if hasattr(module, name):
            setattr(module, name, value)


def _carry_objects(received: ReceivedValues) -> None:
    """Have collectives of objects give this rank's own, and leave lists that another rank would fill as they are."""
    module: Any = distributed_c10d
    unpack = module._tensor_to_object
    module._tensor_to_object = lambda tensor, size, *rest: unpack(tensor, size, *rest) if int(size) else _NOTHING
    for name in _OBJECTS:
        if hasattr(module, name):
            _replace(name, _object_collective(getattr(module, name), received))


def _object_collective(function: Callable[..., Any], received: ReceivedValues) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list)]
        before = [list(value) for value in lists]
        received.paused += 1
        try:
            return function(*args, **kwargs)
        finally:
            received.paused -= 1
            lacking = [_restored(value, old) for value, old in zip(lists, before, strict=True)]
            if any(lacking):
                received.note_objects()

    return call


def _restored(values: list[Any], before: Sequence[Any]) -> bool:
    """Put back what nothing was received for; whether there was any."""
    lacking = [place for place, value in enumerate(values) if value is _NOTHING]
    for place in lacking:
        values[place] = before[place]
    return bool(lacking)
