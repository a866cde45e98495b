"""Writes down the calls of this process: one black box a process, one log a group."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeAlias

import torch

from simcoll.backends.base import Backend
from simcoll.blackbox import BlackBoxWriter
from simcoll.blackbox.box import Box, NoBox
from simcoll.blackbox.format import ASYNCHRONOUS, AWAITED, CAPTURED, HANDED_ON, LET_GO, LET_GO_LATER, REPLAYED
from simcoll.blackbox.stacks import answer_into, offer_recorded_stacks, stack_path
from simcoll.core.device_errors import device_error
from simcoll.core.record import Group, Record, Source, State, source_document
from simcoll.errors import MissingRankError
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.dump import heading, stacks_name
from simcoll.recorder.own_memory import Separate, layout_fault
from simcoll.recorder.quick import Conditions, OpenCall, Quick, memory_plan, quick_way
from simcoll.recorder.source import Site, traceback_source
from simcoll.spec.call import Call
from simcoll.spec.checksum import flow_word, joined_word, message_digest, statement_digest
from simcoll.spec.collectives import spec_of
from simcoll.spec.ddp_model import Claim
from simcoll.spec.table import Kind
from simcoll.values.choice import Choice
from simcoll.values.tensors import CallValues, ValueWatch
from simcoll.verifier.agreement.own_memory import MemoryFault
from simcoll.verifier.halts.failures import Nature, nature_of

_PREPARED_LIMIT = 8192
"""Distinct calls that a group keeps at hand; a program with ever-changing shapes starts over at this many."""


# Plain names: every look at a member of an enum costs.
_SCHEDULED, _STARTED = State.SCHEDULED, State.STARTED


class DeviceTimed(Protocol):
    """A call whose end a device shows, not the host."""

    def awaited(self) -> None:
        """Note that later work on this thread's stream runs after the call."""
        ...


class Recorder:
    """The black box of this process, or nothing where it could not be made: recording never fails a job."""

    def __init__(self, out: Path, mode: str, rank: int, world_size: int) -> None:
        self.rank = rank
        self.noted: BaseException | None = None
        """The last exception that was written down, so that it is not written again on its way up."""
        self.uncaught: BaseException | None = None
        """The exception that ends the rank, where it is written down."""
        self.parts_received = 0
        """Calls that brought this rank what others did not get."""
        self._handled = 0
        self._counts: Counter[object] = Counter()
        self._box: Box = NoBox()
        try:
            out.mkdir(parents=True, exist_ok=True)
            box = self._box = BlackBoxWriter(out / box_name(rank), rank=rank, world_size=world_size, mode=mode)
            offer_recorded_stacks(stack_path(out, rank))
            answer_into(
                out / stacks_name(box.path.name),
                heading(f"rank {rank}: each SIGUSR1 from now on adds those of that moment"),
            )
        except OSError as error:
            _warn(f"rank {rank}: no black box in {out}: {error.strerror or error}; the job goes on unrecorded")

    @classmethod
    def into(cls, box: Box, rank: int) -> Recorder:
        """A recorder that writes into a box that exists already, and that no other recorder finds."""
        recorder = cls.__new__(cls)
        recorder.rank, recorder.noted, recorder._counts, recorder._box = rank, None, Counter(), box
        recorder.uncaught = None
        recorder._handled = recorder.parts_received = 0
        return recorder

    @property
    def box(self) -> Box:
        """The black box."""
        return self._box

    def event(self, kind: str, **data: object) -> None:
        """Write down an :class:`~simcoll.core.record.Event`."""
        self._box.event(kind, **data)

    def repeated_event(self, kind: str, case: object, **data: object) -> None:
        """Write down an event with its ``count`` so far; events of one kind and (hashable) ``case`` count together.

        The first of events that a loop repeats is written down, and then one each time that their number has doubled.
        """
        self._counts[kind, case] += 1
        count = self._counts[kind, case]
        if count & (count - 1) == 0:
            self.event(kind, count=count, **data)

    def failed(self, entry: Entry, error: Exception) -> None:
        """Write down that a call failed while it ran."""
        self._note("failed", entry, error)

    def rejected(self, entry: Entry, error: Exception) -> None:
        """Write down that the backend refused a call."""
        self._note("rejected", entry, error)

    def missing(self, entry: Entry, error: MissingRankError) -> None:
        """Write down the ranks that did not come to a collective."""
        self.noted = error
        self.event(
            "missing",
            group=entry.log.group.name,
            sequence=entry.sequence,
            missing=list(error.absent),
            waited_ms=error.waited_ms,
            source=source_document(entry.source),
        )

    def handling(self, entry: Entry, error: BaseException) -> None:
        """Write down that a call is the first that the program makes while it handles an exception, or lets it pass."""
        if id(error) == self._handled:
            return
        self._handled = id(error)
        source = traceback_source(error.__traceback__)
        self.repeated_event(
            "handling",
            (type(error).__name__, source),
            group=entry.log.group.name,
            sequence=entry.sequence,
            type=type(error).__name__,
            message=_text_of(error),
            source=source_document(source),
        )

    def _note(self, kind: str, entry: Entry, error: Exception) -> None:
        self.noted = error
        self.event(
            kind,
            group=entry.log.group.name,
            sequence=entry.sequence,
            function=entry.call.op,
            type=type(error).__name__,
            message=str(error),
            source=source_document(entry.source),
        )

    def close(self) -> None:
        """Write all that is pending; the box stays readable whether or not this is called."""
        self._box.close()


def _text_of(error: BaseException) -> str:
    """The text of an exception of the program's, which may fail as any of its code may."""
    try:
        return str(error)
    except Exception:
        return ""


def box_name(rank: int) -> str:
    """The file name of a rank's black box; an elastic restart keeps the boxes of the attempts before it."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"rank{rank:05d}.simcoll" if attempt == "0" else f"rank{rank:05d}.attempt{attempt}.simcoll"


def _warn(text: str) -> None:
    sys.stderr.write(f"simcoll: {text}\n")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parts of a call that stay the same whenever a rank makes it again.

    ``statement`` is the digest of what it states, ``flows`` the part of its word that its flows make, ``word`` the
    whole word (:func:`~simcoll.spec.checksum.word`), ``message`` the statement of a send or receive on its data
    (:func:`~simcoll.spec.checksum.message_digest`). ``fault`` is the error that the backend makes for its tensors'
    strides, ``separate`` are the tensors whose addresses must be compared each time. ``parts`` says that it brings the
    rank what others do not get: its part of what they have, or a message.
    """

    call: Call
    statement: int
    flows: int
    word: int
    message: int
    signature: int
    use: Use
    fault: MemoryFault | None = None
    separate: Separate | None = None
    parts: bool = False

    @property
    def plain(self) -> bool:
        """True for a collective of tensors of the host alone, of which nothing but its place is new in each call."""
        call, use = self.call, self.use
        known = self.fault is None and self.separate is None and call.peer is None
        return known and use.on_cpu and use.device < 0 and bool(call.inputs or call.outputs)


@dataclass(frozen=True, slots=True)
class Use:
    """The use that a call makes of its buffers while it is in flight.

    ``writes`` and ``sends`` say whether this rank's buffers are written to, and whether their content is sent;
    ``copies`` that the backend writes them back by a copy, which their versions show; ``counts`` how many versions it
    adds to a tensor of the result, at most (None: not known); ``tells`` that its Work says by itself when the call has
    ended. ``device`` is the index of the device on whose streams it is queued (-1: on none);
    calls of one ``queue`` of a group run one after the other there; of ``marked_late`` ones
    no stream may be made to wait before the program has waited.
    """

    writes: bool
    sends: bool
    copies: bool
    tells: bool
    on_cpu: bool
    device: int = -1
    queue: int = -1
    marked_late: bool = False
    counts: int | None = None


Written: TypeAlias = tuple[Prepared, int, Source, int, dict[str, list[torch.Tensor]] | None, Site]
"""A call that went the quick way: what stays the same of it, its sequence number, its line and its ticket; the tensors
of an asynchronous one by role, None for any other; and the place that made it."""


@dataclass(slots=True)
class Entry:
    """One call as it is written down while it runs."""

    log: GroupLog
    prepared: Prepared
    sequence: int
    source: Source
    asynchronous: bool
    ticket: int
    claim: Claim | None = None
    """The model that DistributedDataParallel begins to check with this call, or None."""
    taken_from: int | None = None
    """The group rank whose message a receive from any source has taken."""
    timed: DeviceTimed | None = None
    """The device's timing of the call, where the host does not see its end."""
    fault: MemoryFault | None = None
    """The error that the backend makes because of the memory layout of the call's tensors."""
    values: CallValues | None = None
    """The values of the call, where they are checked."""
    of_model: bool = False
    """True if the model makes the call (:meth:`Site.of_model`); known where values are checked."""

    @property
    def call(self) -> Call:
        """The call that the rank made."""
        return self.prepared.call

    @property
    def use(self) -> Use:
        """The use that the call makes of its buffers."""
        return self.prepared.use

    @property
    def number(self) -> int:
        """Its number among the group's collectives, or among its sends and receives."""
        return self.sequence if self.call.peer is None else self.log.place[1]

    def started(self) -> None:
        """Note that the backend has been given the call."""
        self.log.box.advance(self.ticket, _STARTED)

    def awaited(self) -> None:
        """Note that a thread begins to wait for the call's end."""
        self.log.box.waits(self.ticket, AWAITED)

    def held_up(self) -> None:
        """Note that the rank begins to wait for the call's future, as far as is known."""
        self.log.box.waits(self.ticket, 0)

    def handed_on(self) -> None:
        """Note that the call's future was taken."""
        self.log.box.mark(self.ticket, HANDED_ON)

    def let_go(self, *, later: bool) -> None:
        """Note that the program dropped the call's Work before it had waited for it; ``later``: but for another one."""
        self.log.box.mark(self.ticket, LET_GO | LET_GO_LATER if later else LET_GO)

    def lacked(self, missing: MissingRankError) -> None:
        """Note that ranks did not come to the call."""
        self.log.recorder.missing(self, missing)

    def received_from(self, group_rank: int) -> None:
        """Write down whose message a receive from any source has taken."""
        self.taken_from = group_rank
        known = replace(self.call, peer=group_rank)
        self.log.box.resign(self.ticket, self.log.box.signature(known))

    def finished(self, state: State = State.COMPLETED) -> None:
        """Note that the call ended, as far as the host sees."""
        try:
            if self.values is not None and state is State.COMPLETED:
                self.values.ended()
        finally:
            if self.timed is None or state is not State.COMPLETED:
                self.log.box.advance(self.ticket, state)

    def waited_for(self) -> None:
        """Note that a thread has waited for the call, which ended well."""
        try:
            if self.values is not None:
                self.values.ended()
        finally:
            if self.timed is None:
                self.log.box.advance(self.ticket)
            else:
                self.timed.awaited()

    def ran_on_device(self, began_ns: int, ended_ns: int = 0) -> None:
        """Note the times at which a device began and ended the call (0: it runs)."""
        self.log.box.ran_on_device(self.ticket, began_ns, ended_ns)

    def ended_on_device(self) -> None:
        """Note that a device has ended the call, at an unknown time."""
        self.log.box.ended_on_device(self.ticket)

    def failed(self, error: Exception, *, refused: bool = False) -> None:
        """Note that the call ended with an exception; some backends refuse a call only when they come to run it."""
        about = type(error).__name__, str(error)
        # An error of the device comes up at whichever call asks next, and a peer that is gone shows when the call is
        # made, or later: neither refuses anything.
        refused = refused and device_error(*about) is None and nature_of(*about) is Nature.OWN
        if refused or self.log.refusal(self.call) is not None:
            self.finished(State.REJECTED)
            self.log.recorder.rejected(self, error)
        else:
            self.finished(State.FAILED)
            self.log.recorder.failed(self, error)

    def note(self, kind: str, case: tuple[object, ...], **data: object) -> None:
        """Write down an event about the call; of those of one line and ``case`` only some, with their number."""
        self.log.recorder.repeated_event(
            kind,
            (self.source, *case),
            group=self.log.group.name,
            sequence=self.sequence,
            op=self.call.op,
            source=source_document(self.source),
            **data,
        )

    def record(self) -> Record:
        """The call as the verifier reads it."""
        return Record(self.log.group.name, self.sequence, self.call, self.source, asynchronous=self.asynchronous)


class GroupLog:
    """The calls of one group on this rank, in order."""

    def __init__(
        self,
        recorder: Recorder,
        group: Group,
        group_rank: int,
        backends: Mapping[str, Backend] = MappingProxyType({}),
        choice: Choice | None = None,
    ) -> None:
        """``choice`` selects the calls whose values are checked; None: no call."""
        self.recorder = recorder
        self._backends = backends
        self.box = recorder.box
        self.group = group
        self.group_rank = group_rank
        self.index = self.box.group(group)
        """The number of the group in the black box."""
        size = len(group.ranks)
        self.values = None if choice is None else ValueWatch(choice, self.box, self.index, group_rank, size)
        self._prepared: dict[tuple[object, ...], Prepared] = {}
        self._plain: dict[tuple[object, ...], tuple[Prepared, int, bytes | None]] = {}
        self.collectives = 0
        """The sequence number of the collective made last."""
        self._messages = 0
        self.lock = threading.Lock()
        """Held while a call gets its place and its slot."""

    @property
    def place(self) -> tuple[int, int]:
        """The sequence number and the p2p sequence number of the calls made last."""
        return self.collectives, self._messages

    def backend(self, device: str) -> Backend | None:
        """Returns the description of the backend for a device type; None where it is not known."""
        return self._backends.get(device)

    def refusal(self, call: Call) -> str | None:
        """The reason why the backend of the call's device cannot do it, as far as that is known, or None."""
        backend = self._backend_of(call)
        return None if backend is None else backend.refusal(call, self.group_rank, len(self.group.ranks))

    def _backend_of(self, call: Call) -> Backend | None:
        devices = {buffer.device for buffer in (*call.inputs, *call.outputs)}
        return self.backend(devices.pop()) if len(devices) == 1 else None

    def begin(
        self,
        arguments: Arguments,
        source: Source,
        claim: Claim | None = None,
        *,
        started: bool = False,
        awaited: bool = False,
        of_model: bool = False,
    ) -> Entry:
        """Write down that a call was made; gives it its place in the group.

        A ``started`` call is given to the backend at once; an ``awaited`` one the thread that makes it waits for.
        """
        key = arguments.known_key or arguments.key
        prepared = self._prepared.get(key) or self._prepare(key, arguments)
        flags = arguments.asynchronous * ASYNCHRONOUS | awaited * AWAITED
        entry = self._write(prepared, source, _STARTED if started else _SCHEDULED, flags, claim)
        self.recorder.parts_received += prepared.parts
        entry.of_model = of_model
        if (error := sys.exc_info()[1]) is not None:
            self.recorder.handling(entry, error)
        fault = prepared.fault
        if fault is None and prepared.separate is not None:
            fault = prepared.separate.fault(arguments)
        if fault is not None:
            entry.fault = fault
            entry.note("unsound", (fault.code, entry.call.op), **fault.to_json())
        return entry

    def quick(self, conditions: Conditions, join: Callable[[Written], object] | None = None) -> Quick | None:
        """The quick way of the group's plain calls (:func:`~simcoll.recorder.quick.quick_way`), if there is one."""
        return quick_way(self, self._plain, conditions, join)

    def entry(self, written: Written | OpenCall) -> Entry:
        """The entry of a call that went the quick way."""
        prepared, sequence, source, ticket, tensors, _ = written if isinstance(written, tuple) else written.written
        return Entry(self, prepared, sequence, source, tensors is not None, ticket)

    def begin_captured(self, arguments: Arguments, source: Source) -> Entry:
        """Write down that a CUDA graph captures a call, which takes no place in the group: it does not run."""
        return self._write(
            self._prepare(arguments.key, arguments), source, _SCHEDULED, ASYNCHRONOUS | CAPTURED, counts=False
        )

    def begin_replayed(self, prepared: Prepared, source: Source) -> Entry:
        """Write down that a CUDA graph is about to run a call that it captured: it takes its place in the group."""
        # No Work is handed out: the program can only wait for all that the graph does.
        return self._write(prepared, source, _SCHEDULED, ASYNCHRONOUS | REPLAYED | HANDED_ON)

    def _write(
        self,
        prepared: Prepared,
        source: Source,
        state: State,
        flags: int,
        claim: Claim | None = None,
        *,
        counts: bool = True,
    ) -> Entry:
        """Write a call down, and give it its place where it ``counts``."""
        message = prepared.call.peer is not None
        box = self.box
        with self.lock:
            if message:
                self._messages += counts
            else:
                self.collectives += counts
            sequence, p2p_sequence = self.collectives, self._messages if message else 0
            line = box.source(source)
            ticket = box.write(self.index, sequence, prepared.signature, line, p2p_sequence, state, flags)
            return Entry(self, prepared, sequence, source, flags & ASYNCHRONOUS > 0, ticket, claim)

    def _prepare(self, key: tuple[object, ...], arguments: Arguments) -> Prepared:
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _PREPARED_LIMIT:
                self._prepared.clear()
                self._plain.clear()
            prepared = self._prepared[key] = self._fold(arguments)
            if prepared.plain:
                self._plain[key] = prepared, prepared.signature, memory_plan(arguments.tensors, prepared.use)
        return prepared

    def _fold(self, arguments: Arguments) -> Prepared:
        call = arguments.call()
        if (backend := self._backend_of(call)) is not None:
            call = backend.formed(call)
        spec, size = spec_of(call), len(self.group.ranks)
        statement = statement_digest(spec.statement(call, self.group_rank, size))
        flows = flow_word(spec.flows(call, self.group_rank, size), self.group_rank)
        return Prepared(
            call,
            statement,
            flows,
            joined_word(statement, flows, self.group_rank, size),
            message_digest(call) if spec.kind is Kind.POINT_TO_POINT else 0,
            self.box.signature(call),
            self._use(call),
            layout_fault(arguments, backend, size),
            Separate.of(arguments, backend, self.group_rank),
            bool(call.outputs) and (spec.values is None or not spec.values.replicated),
        )

    def _use(self, call: Call) -> Use:
        spec, backend = spec_of(call), self._backend_of(call)
        devices = {buffer.device for buffer in (*call.inputs, *call.outputs)}
        queued = backend is not None and backend.on_streams
        copies = call.coalesced or (backend is not None and backend.staged and devices != {"cpu"})
        known = backend is not None and devices == {"cpu"} and not call.coalesced
        return Use(
            writes=spec.brings_result(call, self.group_rank),
            sends=spec.sends_inputs(call, self.group_rank),
            copies=copies,
            # No property of an unknown backend is assumed.
            tells=devices == {"cuda"} if backend is None else call.op not in backend.ended_only_by_wait,
            on_cpu=devices <= {"cpu"},
            device=_index(call) if queued else -1,
            queue=-1 if call.peer is None else call.peer,
            # The end of a call whose Work blocks the host cannot be marked before the program waits for it.
            marked_late=backend is not None and (backend.waits_on_host or call.spelling in backend.allocates),
            counts=backend.counted(call.spelling, len(self.group.ranks)) if known and backend is not None else None,
        )


def _index(call: Call) -> int:
    """The device of a call's buffers; -1 where they are on several, or say none."""
    indices = {buffer.index for buffer in (*call.inputs, *call.outputs)}
    index = indices.pop() if len(indices) == 1 else None
    return -1 if index is None else index
