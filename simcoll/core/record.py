"""Calls as written down: the record, the group it belongs to, and the line of the user's program that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Final, cast

from simcoll.spec.call import Call


class State(IntEnum):
    """The progress of a call. ``REJECTED`` is a call that the proof or the backend refused to run."""

    SCHEDULED = 0
    STARTED = 1
    COMPLETED = 2
    FAILED = 3
    REJECTED = 4


FRAME_LIMIT: Final = 24
"""Frames of a stack that are kept, at most."""

_EVENT_FRAMES: Final = 8
"""Frames that an event tells: a program may make thousands of groups."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program: file, 1-based line, function, and the line's text as it was when it ran.

    ``callers`` are the frames outside of it, ``through`` those of installed packages by which it made its call; both
    begin with the innermost, and hold lines without frames of their own. They do not count when lines are compared.
    """

    file: str
    line: int
    function: str
    code: str = ""
    callers: tuple[Source, ...] = field(default=(), compare=False)
    through: tuple[Source, ...] = field(default=(), compare=False)

    @property
    def stack(self) -> tuple[Source, ...]:
        """All frames that are known, innermost first; they tell calls of one line apart."""
        return (*self.through, self, *self.callers)


UNKNOWN_SOURCE = Source("", 0, "")
"""The source of a call that no line of the user's program made (a thread of C++)."""


def source_document(source: Source) -> list[object]:
    """A source line as JSON values, read back by :func:`source_from`: with its innermost callers, where it has any."""
    return [*_line_document(source), *([frames_document(source.callers[:_EVENT_FRAMES])] if source.callers else ())]


def frames_document(frames: tuple[Source, ...]) -> list[object]:
    """Frames of a stack as JSON values, read back by :func:`frames_from`."""
    return [_line_document(frame) for frame in frames]


def _line_document(source: Source) -> list[object]:
    return [source.file, source.line, source.function, source.code]


def source_from(value: object) -> Source:
    """The source line of a list of file, line, function, code and callers; unknown where it is malformed."""
    if not isinstance(value, list) or len(value) not in (4, 5):
        return UNKNOWN_SOURCE
    file, line, function, code = value[:4]
    if not isinstance(file, str) or type(line) is not int or not isinstance(function, str):
        return UNKNOWN_SOURCE
    callers = frames_from(value[4]) if len(value) == 5 else ()
    return Source(file, line, function, code if isinstance(code, str) else "", callers)


def frames_from(value: object) -> tuple[Source, ...]:
    """Frames of a stack, up to the first that is malformed, and not more than a stack has."""
    found = []
    for frame in islice(value, FRAME_LIMIT) if isinstance(value, list) else ():
        source = source_from(frame[:4]) if isinstance(frame, list) else UNKNOWN_SOURCE
        if source is UNKNOWN_SOURCE:
            break
        found.append(source)
    return tuple(found)


class Members(tuple[int, ...]):
    """The global ranks of a group, in group-rank order: a tuple that works its hash and its ranks' places out once.

    A group of thousands is a key, and is asked for its members, thousands of times.
    """

    _hash: int | None = None
    _places: dict[int, int] | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash

    def __reduce__(self) -> tuple[type[Members], tuple[tuple[int, ...]]]:
        return Members, (tuple(self),)

    def place(self, rank: int) -> int | None:
        """The group rank of a global rank; None where it is no member."""
        if self._places is None:
            self._places = {member: place for place, member in reversed([*enumerate(self)])}
        return self._places.get(rank)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its c10d name, its description, and its members as global ranks in group-rank order.

    ``partial``: no record states the members, so there may be more than the ranks with recorded calls, listed here.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    partial: bool = False

    def __post_init__(self) -> None:
        if type(self.ranks) is not Members:
            object.__setattr__(self, "ranks", Members(self.ranks))

    def place(self, rank: int) -> int | None:
        """The group rank of a global rank; None where it is no member."""
        return cast(Members, self.ranks).place(rank)


@dataclass(frozen=True, slots=True)
class Record:
    """A call, where it stands in its group, how far it came.

    ``sequence`` counts the collectives of a group from 1; send and receive carry the sequence of the last collective
    before them, and count in ``p2p_sequence`` from 1 (0 for collectives). ``awaited`` says that a thread waits for the
    call, or has waited or otherwise seen its end. Times are nanoseconds of the wall clock, 0
    where the state was not reached; ``on_device`` says that its start and its end are the device's own.
    """

    group: str
    sequence: int
    call: Call
    source: Source = UNKNOWN_SOURCE
    state: State = State.SCHEDULED
    asynchronous: bool = False
    awaited: bool = False
    p2p_sequence: int = 0
    scheduled_ns: int = 0
    started_ns: int = 0
    finished_ns: int = 0
    on_device: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something else that a rank wrote down: ``kind`` and its data (JSON values), at a time of the wall clock.

    * ``exception``: an exception that ended the rank: ``type``, ``message``, ``source`` (:func:`source_document`),
      ``api`` (the name of the torch.distributed function whose own check raised it, or null), ``before_groups``;
    * ``rejected``: torch.distributed or the backend refused one rank's call: ``function``, ``type``, ``message``,
      ``source``, ``group`` (or null), ``sequence`` (or null);
    * ``missing``: the ranks that did not come to a collective in time: ``group``, ``sequence``, ``missing`` (global
      ranks), ``waited_ms``, ``source``;
    * ``failed``: a call failed while it ran (a connection closed, a timeout): ``group``, ``sequence``, ``type``,
      ``message``, ``source``;
    * ``handling``: the first call that the program made while it handled an exception, or while one passed through a
      ``finally``: ``group``, ``sequence``, ``type``, ``message``, ``source`` (the line that raised), ``count`` (of that
      line so far; written whenever it has doubled);
    * ``creating`` and ``created``: the rank began, and finished, to make a process group: ``life`` (how often the
      default group was made), ``ordinal`` (the number of the group since then, from 1; 0 for the default group itself),
      ``ranks`` (global ranks, as given), ``source``;
    * ``destroyed``: the rank is about to destroy a process group: ``group`` (null: all of them), ``source``;
    * ``parameters``: DistributedDataParallel begins to check a model: ``group``, ``digest`` (of the list), ``count``,
      ``source``, and ``parameters``, a list of name, dtype, shape and whether it is trained, where the same list was
      not written before and is not too long;
    * ``non_member``: a call on a group that the rank does not belong to, which torch dropped: ``function``, ``count``
      (calls of this line so far; written whenever it has doubled), ``source``;
    * ``changed``: a buffer of an asynchronous call was written to before its end was observed: ``group``, ``sequence``,
      ``op``, ``source``, ``known`` (the call had not been launched), ``noticed`` (the line that waits, or null),
      ``count`` as above;
    * ``overlap``: a call uses memory that an open one uses: ``group``, ``sequence``, ``op``, ``source``,
      ``both_write``, ``running`` (the other one had not ended), ``other`` (its ``group``, ``sequence``, ``op``,
      ``source``), ``count`` as above;
    * ``unsound``: the call's own tensors lie in memory so that the backend gives wrong results without a word:
      ``group``, ``sequence``, ``op``, ``source``, ``rule`` (the code of its rule), ``reason``, ``beyond`` (memory that
      is not the tensor's is written to), ``count`` as above;
    * ``device``: the operations that a dry run counted, in the order in which a device would run them: ``items``
      (`simcoll.pricing.device_ops`);
    * ``captured`` and ``replayed``: a CUDA graph has captured calls, or is about to run them again: ``graph`` (its
      number in the process), ``calls`` (how many), ``source``, and of a replay ``count`` (replays so far; written
      whenever it has doubled);
    * ``values``: digests of a collective's inputs and results: ``group`` (its index in the rank's table of groups),
      ``sequence``, ``sent`` and ``received`` (each the names and numbers of a side, where the rank has it:
      :class:`simcoll.verifier.values.digests.SideValues`), ``scaling`` (the round of the search for a scale of losses,
      if there is one), ``of_model`` (absent, or true: torch's layers, wrappers and optimizers, or a backward pass, make
      the call), ``sampled`` (absent, or true: calls beside it are not checked),
      ``cleared`` (how often the rank had cleared gradients, if it had);
    * ``replicas``: tensors that ranks have to hold alike: ``index`` (the set's number on this rank), ``by`` (what
      promises it: ``DistributedDataParallel`` or ``DTensor``), ``group`` (its name, or empty), ``ranks`` (global),
      ``ordinal`` (of models or optimizers over these ranks), ``tensors`` (what they are), ``form`` (a digest of their
      names, dtypes and shapes), ``count``, ``names`` (empty where they are too long), ``source``;
    * ``state``: digests of such a set: ``replicas`` (its index), ``at`` (the collectives made in the group, or the
      steps of the optimizer), ``steps``, ``settings`` (numbers of the optimizer by name), ``hash``, ``parts``
      (:func:`simcoll.values.folding.folded`);
    * ``inputs``: a model whose batches are looked at: ``index`` (its number on this rank), ``by``
      (``DistributedDataParallel`` or ``FSDP``), ``ranks`` (global) and ``groups`` (names) that share out its data,
      ``ordinal`` (among the models of these ranks), ``sampled`` (not all of its batches are looked at), ``source``;
    * ``batch``: what such a model got in the first training pass of a step: ``inputs`` (its index), ``number`` (of the
      step, from 0), ``hash`` (of all tensors), ``data`` (of those that are data);
    * ``trained``: what such a step did: ``inputs``, ``number``, ``calls`` (of each of the model's groups how many
      collectives were made before it, and by its end), ``random`` (the state of the generators before it), ``drew``
      (whether it has changed), ``first`` (digests of what entered the first layers before it did);
    * ``activations``: places of a training step at which ranks have to hold activations alike: ``index`` (of the list
      on this rank), ``ranks`` (global), ``form`` (a digest of their dtypes and shapes), ``sources`` (of each place);
    * ``promised``: what such ranks held in a step: ``index``, ``number`` (of the step, from 0), ``digests`` (eight
      hexadecimal digits of each place, or dashes) and ``states`` (of the random generators there, as long);
    * ``buckets``: how DistributedDataParallel, or a unit of FSDP, lays out gradients: ``group``, ``model`` (its ordinal
      in the group; negative for a unit), ``rows`` (for how many ranks, each with the same part of every parameter),
      ``buckets`` (in the order in which they are sent, of each the names and numbers of elements of its parameters, in
      order), ``since`` (collectives of the group after which this may be so), ``seen`` (after which it is so);
    * ``scaled``: the rank has made a GradScaler;
    * ``discarded``: gradients were cleared twice without a step of their optimizer in between: ``since`` and ``until``,
      the numbers of these two of all clearings;
    * ``outlived``: after a step the weights and states of all optimizers were read, since calls had carried NaN or an
      infinity: ``until``, the number of the look among clearings, ``finite``;
    * ``unchecked``: a check of values has failed itself, and none is made from here on: ``of`` (``calls``, or
      ``steps``), ``type``, ``message``;
    * ``step``: the program has marked the end of a step: ``number`` (from 1; thinned out, `simcoll.core.steps`);
    * ``steps``: what a reader adds, with no time: ``ended``, how many steps the program had marked;
    * ``exit``: the interpreter ended by itself.
    """

    kind: str
    time_ns: int
    data: dict[str, object]

    def __reduce__(self) -> tuple[type[Event], tuple[str, int, dict[str, object]]]:
        # Ranks of a large job have many: the way that dataclasses are pickled by themselves takes five times as long.
        return Event, (self.kind, self.time_ns, self.data)


def text(event: Event, name: str) -> str:
    """A text of an event; empty where it is absent or no text."""
    value = event.data.get(name)
    return value if isinstance(value, str) else ""


def number(event: Event, name: str) -> int | None:
    """An integer of an event; None where it is absent or none."""
    value = event.data.get(name)
    return value if type(value) is int else None


def source_of(data: Mapping[str, object]) -> Source:
    """The source line of an event; unknown where it is malformed."""
    return source_from(data.get("source"))
