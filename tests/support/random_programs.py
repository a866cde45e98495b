"""Random distributed programs as plain data: correct ones, and ones with a planted bug.

A program is a list of steps a rank; a step is one line of Python on a communicator (``comm``), the same for simulated,
threaded and real ranks. Ranks that do the same do it on the same line. ``generate`` makes a correct program, which Gloo
can run, and ``mutations`` names the bugs that :func:`planted` can put into it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from simcoll.backends.gloo import GLOO
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import METHODS
from simcoll.spec.table import Rooted

Shape = tuple[int, ...]

FLOATS = ("float16", "float32", "float64")
DTYPES = ("bool", "uint8", "int8", "int32", "int64", *FLOATS)
ANY_DTYPES = (*DTYPES, "int16", "complex64", "complex128")
COMPLEX = ("allreduce", "broadcast", "reduce")
"""What torch.distributed gives to Gloo as complex numbers; it views those of other calls as real ones."""

OPS = ("sum", "product", "min", "max", "avg", "band", "bor", "bxor")
QUEUED = ("allreduce", "broadcast", "reduce", "allgather", "all_gather_single", "gather", "scatter", "alltoall")
"""Calls whose end a program may ask for; the Work of others learns of it in ``wait`` only (``ended_only_by_wait``)."""

WORLD = "comm"


@dataclass(frozen=True)
class Array:
    """A buffer of the program: ``seed`` says what is in it, None zeros; ``view`` is the text of a view of another."""

    name: str
    shape: Shape
    dtype: str
    seed: int | None = None
    view: str | None = None

    @property
    def text(self) -> str:
        return f"{self.name} = " + (self.view or f"array({self.name!r}, {self.shape}, {self.dtype!r}, {self.seed})")


@dataclass(frozen=True)
class Step:
    """One line of one rank. ``kind`` is ``call``, ``message`` or ``text``; what does not apply is empty.

    ``caught``: what the call raises is caught, and the program goes on.
    """

    line: int
    kind: str
    group: str = WORLD
    spelling: str = ""
    inputs: tuple[Array, ...] = ()
    outputs: tuple[Array, ...] = ()
    reduce_op: str | None = None
    root: int | None = None
    input_splits: tuple[int, ...] | None = None
    output_splits: tuple[int, ...] | None = None
    peer: int | None = None
    tag: int = 0
    work: str | None = None
    text: str = ""
    caught: bool = False

    @property
    def in_place(self) -> bool:
        return self.kind == "call" and METHODS[self.spelling][0].in_place

    @property
    def source(self) -> str:
        """The line of Python."""
        if self.kind == "text":
            return self.text
        made = [array.text for array in (self.inputs if self.in_place else (*self.inputs, *self.outputs))]
        return "; ".join([*made, self._call_text() if self.kind == "call" else self._message_text()])

    def _call_text(self) -> str:
        named = ("reduce_op", "root", "input_splits", "output_splits")
        stated = "".join(f", {name}={value!r}" for name in named if (value := getattr(self, name)) is not None)
        method = "call" if self.work is None else "post"
        outputs = self.inputs if self.in_place else self.outputs
        text = f"{self.group}.{method}({self.spelling!r}, {_names(self.inputs)}, {_names(outputs)}{stated})"
        return f"caught(lambda: {text})" if self.caught else f"{self._result}{text}"

    def _message_text(self) -> str:
        [array] = self.inputs or self.outputs
        method = ("i" if self.work else "") + self.spelling
        peer = "" if self.peer is None else f", {self.peer}"
        return f"{self._result}{self.group}.{method}({array.name}{peer}, tag={self.tag})"

    @property
    def _result(self) -> str:
        return f"{self.work} = " if self.work else ""

    def call(self) -> Call:
        """What the step asks for."""
        spec, method = METHODS[self.spelling]
        inputs = tuple(Buffer(array.shape, array.dtype) for array in self.inputs)
        outputs = inputs if spec.in_place else tuple(Buffer(array.shape, array.dtype) for array in self.outputs)
        splits = {"input_splits": self.input_splits, "output_splits": self.output_splits}
        return Call(
            spec.name, self.spelling, inputs, outputs, self.reduce_op, self.root, **splits, coalesced=method.coalesced
        )


def _names(arrays: Sequence[Array]) -> str:
    return "[" + ", ".join(array.name for array in arrays) + "]"


@dataclass(frozen=True)
class Program:
    """Each rank's steps; ``groups`` are the members (global ranks) of each communicator by its variable.

    ``unsure`` names the buffers whose content the standard, or the order of events, leaves open. ``bug`` says what was
    planted.
    """

    ranks: tuple[tuple[Step, ...], ...]
    groups: dict[str, tuple[int, ...]]
    unsure: frozenset[str] = frozenset()
    bug: str = ""

    def source(self, rank: int) -> str:
        """A rank's program, ``def program(comm)``; each step on the line that it says."""
        lines = ["def program(comm):"]
        for step in self.ranks[rank]:
            lines += [""] * (step.line - len(lines) - 1)
            lines.append(f" {step.source}")
        return "\n".join([*lines, " pass", ""])

    def document(self) -> dict[str, object]:
        """What a player needs: JSON values."""
        return {"sources": [self.source(rank) for rank in range(len(self.ranks))], "unsure": sorted(self.unsure)}

    def __str__(self) -> str:
        return "\n".join(
            [f"# {self.bug or 'correct'}"]
            + [
                f"# rank {rank}\n" + "\n".join(f"{step.line:4d} {step.source}" for step in steps)
                for rank, steps in enumerate(self.ranks)
            ]
        )


class Writer:
    """A program while it is written: the same step for all members of a group stands on one line."""

    def __init__(self, chance: random.Random, size: int) -> None:
        self.chance = chance
        self.size = size
        self.groups: dict[str, tuple[int, ...]] = {WORLD: tuple(range(size))}
        self.steps: list[list[Step]] = [[] for _ in range(size)]
        self.unsure: set[str] = set()
        self.pending: list[dict[int, str]] = []
        self._line = 1

    def next_line(self) -> int:
        self._line += 10
        return self._line

    def name(self, letter: str) -> str:
        return f"{letter}{self._line}"

    def add(self, members: Sequence[int], make: Callable[[int], Step]) -> None:
        """A step on each member (global rank); ``make`` takes the group rank."""
        for place, rank in enumerate(members):
            self.steps[rank].append(make(place))

    def say(self, rank: int, text: str) -> None:
        self.steps[rank].append(Step(self._line, "text", text=text))

    def program(self) -> Program:
        return Program(tuple(map(tuple, self.steps)), self.groups, frozenset(self.unsure))


def generate(chance: random.Random, size: int | None = None, length: int | None = None) -> Program:
    """A correct program that Gloo can run: 2 to 4 ranks, a few phases."""
    writer = Writer(chance, size or chance.randint(2, 4))
    for _ in range(length or chance.randint(2, 7)):
        chance.choices(list(_PHASES), weights=list(_PHASES.values()))[0](writer)
    while writer.pending:
        _wait(writer)
    if chance.random() < 0.1:
        _model(writer)
    return writer.program()


def _model(writer: Writer) -> None:
    """A model for DistributedDataParallel, which makes calls of its own: nothing comes after it."""
    writer.next_line()
    chance = writer.chance
    named = [(f"layer{number}", (chance.randint(1, 3), 2), chance.choice(FLOATS)) for number in range(3)]
    for rank in range(writer.size):
        writer.say(rank, model_text(named))


def model_text(named: Sequence[tuple[str, Shape, str]]) -> str:
    """The line that states a model's parameters."""
    listed = ", ".join(f"{name!r}: array('', {shape}, {dtype!r}, 1)" for name, shape, dtype in named)
    return f"comm.state_parameters({{{listed}}})"


def _collective(writer: Writer) -> None:
    """A collective of any row, in any form, synchronous or not."""
    chance, line = writer.chance, writer.next_line()
    group = chance.choice(sorted(writer.groups))
    members = writer.groups[group]
    steps = next(steps for steps in _forms(writer, group, len(members), line) if _runs(steps))
    if steps[0].spelling in _ASYNCHRONOUS and chance.random() < 0.4:
        steps = [replace(step, work=writer.name("w")) for step in steps]
        writer.pending.append(dict.fromkeys(members, writer.name("w")))
    if METHODS[steps[0].spelling][0].rooted is Rooted.TO_ROOT and steps[0].in_place:
        for place, step in enumerate(steps):
            if place != step.root:
                steps[place] = _renamed(step, f"u{place}_")
                writer.unsure.update(array.name for array in steps[place].inputs)
    writer.add(members, lambda place: steps[place])


def _renamed(step: Step, prefix: str) -> Step:
    return replace(step, inputs=tuple(replace(array, name=prefix + array.name) for array in step.inputs))


def _runs(steps: Sequence[Step]) -> bool:
    return not any(GLOO.refusal(step.call(), place, len(steps)) for place, step in enumerate(steps))


_ASYNCHRONOUS = (*QUEUED, "reduce_scatter", "reduce_scatter_single", "alltoall_base", "barrier")
SPELLINGS = (
    *_ASYNCHRONOUS,
    "monitored_barrier",
    "_allgather_base",
    "_reduce_scatter_base",
    "allreduce_coalesced",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
)


def _forms(writer: Writer, group: str, size: int, line: int) -> Iterator[list[Step]]:
    """Collectives of one random spelling, with random shapes, until one is wanted."""
    chance = writer.chance
    while True:
        yield form(chance, chance.choice(SPELLINGS), group, size, line)


def form(chance: random.Random, spelling: str, group: str, size: int, line: int) -> list[Step]:
    """One collective, by group rank."""
    spec = METHODS[spelling][0]
    dtype = chance.choice((*DTYPES, "complex64") if spelling in COMPLEX else DTYPES)
    root = chance.randrange(size)
    inputs, outputs, splits = _shapes(chance, spelling, size, root)
    stated = {"root": root if "root" in METHODS[spelling][1].integers or "root" in spec.agree else None}
    reduce_op = chance.choice(OPS) if "reduce_op" in spec.agree else None

    def step(place: int) -> Step:
        mine = tuple(
            Array(f"a{line}_{number}", shape, dtype, 7 * place + number + line)
            for number, shape in enumerate(inputs(place))
        )
        room = tuple(Array(f"o{line}_{number}", shape, dtype) for number, shape in enumerate(outputs(place)))
        divided = splits(place)
        return Step(
            line, "call", group, spelling, mine, room, reduce_op, stated["root"], divided[0], divided[1]
        )  # fmt: skip

    return [step(place) for place in range(size)]


_Shapes = Callable[[int], list[Shape]]
_Splits = Callable[[int], "tuple[tuple[int, ...] | None, tuple[int, ...] | None]"]


def _shapes(chance: random.Random, spelling: str, size: int, root: int) -> tuple[_Shapes, _Shapes, _Splits]:
    """The shapes of a spelling's inputs and outputs, and its splits, by group rank."""
    shape = tuple(chance.randint(1, 3) for _ in range(chance.randint(0, 3)))
    shape = (0, *shape) if chance.random() < 0.05 else shape
    several = [tuple(chance.randint(1, 3) for _ in range(chance.randint(1, 2))) for _ in range(chance.randint(1, 3))]
    rows = shape or (2,)
    none: _Splits = lambda place: (None, None)  # noqa: E731
    if METHODS[spelling][0].in_place:
        wanted = several if METHODS[spelling][1].coalesced else [shape]
        return lambda place: wanted, lambda place: [], none
    if spelling in ("barrier", "monitored_barrier"):
        return lambda place: [], lambda place: [], none
    if spelling == "alltoall_base" and chance.random() < 0.6:
        counts = [[chance.randint(0, 2) for _ in range(size)] for _ in range(size)]
        rest = rows[1:]
        sent = lambda place: tuple(counts[place])  # noqa: E731
        taken = lambda place: tuple(counts[peer][place] for peer in range(size))  # noqa: E731
        return (
            lambda place: [(sum(sent(place)), *rest)],
            lambda place: [(sum(taken(place)), *rest)],
            lambda place: (sent(place), taken(place)),
        )
    if spelling == "reduce_scatter" and chance.random() < 0.4:
        return lambda place: [(peer + 1, 2) for peer in range(size)], lambda place: [(place + 1, 2)], none
    single, listed = {
        "allgather": ([shape], [shape] * size),
        "gather": ([shape], [shape] * size),
        "scatter": ([shape], [shape] * size),
        "reduce_scatter": ([shape], [shape] * size),
        "alltoall": ([shape] * size, [shape] * size),
        "alltoall_base": ([_times(rows, size)], [_times(rows, size)]),
        "allgather_coalesced": (several, several * size),
        "allgather_into_tensor_coalesced": (several, [_times(one, size) for one in several]),
        "reduce_scatter_tensor_coalesced": (several, [_times(one, size) for one in several]),
    }.get(spelling, ([rows], [_times(rows, size)]))
    at_root = lambda place: listed if place == root else []  # noqa: E731
    if spelling == "gather":
        return lambda place: single, at_root, none
    if spelling == "scatter":
        return at_root, lambda place: single, none
    if "reduce_scatter" in spelling:
        return lambda place: listed, lambda place: single, none
    return lambda place: single, lambda place: listed, none


def _times(shape: Shape, size: int) -> Shape:
    return (shape[0] * size, *shape[1:])


def _message(writer: Writer) -> None:
    """One message between two ranks, in any manner."""
    chance, line = writer.chance, writer.next_line()
    group = chance.choice(sorted(writer.groups))
    members = writer.groups[group]
    if len(members) < 2:
        return
    sender, receiver = chance.sample(range(len(members)), 2)
    send, receive = _pair(writer, group, line, sender, receiver, chance.choice((0, 0, 3)))
    if chance.random() < 0.25 and send.inputs[0].shape != (0,):
        # A tag of its own: nobody else's message may be taken instead.
        send, receive = replace(send, tag=line), replace(receive, tag=line, peer=None)
    for rank, step in ((members[sender], send), (members[receiver], receive)):
        if chance.random() < 0.4:
            step = replace(step, work=writer.name("w"))
            writer.pending.append({rank: writer.name("w")})
        writer.steps[rank].append(step)


def _pair(
    writer: Writer, group: str, line: int, sender: int, receiver: int, tag: int, number: int = 0
) -> tuple[Step, Step]:
    chance = writer.chance
    shape = (chance.randint(0, 4),)
    dtype = chance.choice(ANY_DTYPES)
    sent = Array(f"s{line}_{number}", shape, dtype, line + number)
    room = Array(f"r{line}_{number}", shape, dtype)
    send = Step(line, "message", group, "send", inputs=(sent,), peer=receiver, tag=tag)
    return send, Step(line, "message", group, "recv", outputs=(room,), peer=sender, tag=tag)


def _ring(writer: Writer) -> None:
    """Every rank sends to the next, by asynchronous calls or by one batch."""
    chance, line = writer.chance, writer.next_line()
    size, tag = writer.size, 5
    shape, dtype = (chance.randint(1, 4),), chance.choice(ANY_DTYPES)
    batch = chance.random() < 0.5
    for rank in range(size):
        sent, room = Array(f"s{line}", shape, dtype, line + rank), Array(f"r{line}", shape, dtype)
        after, before = (rank + 1) % size, (rank - 1) % size
        if batch:
            work = writer.name("w")
            listed = f'[("send", s{line}, {after}, {tag}), ("recv", r{line}, {before}, {tag})]'
            writer.say(rank, f"{sent.text}; {room.text}; {work} = comm.batch_isend_irecv({listed})")
            writer.say(rank, f"for one in {work}: one.wait()")
        else:
            send = Step(line, "message", WORLD, "send", (sent,), peer=after, tag=tag, work=f"x{line}")
            writer.steps[rank].append(send)
            writer.steps[rank].append(Step(line + 1, "message", WORLD, "recv", (), (room,), peer=before, tag=tag))
            writer.steps[rank].append(Step(line + 2, "text", text=f"x{line}.wait()"))


def _new_group(writer: Writer) -> None:
    """A group of some ranks; every rank makes it."""
    if len(writer.groups) > 2:
        return
    line = writer.next_line()
    members = sorted(writer.chance.sample(range(writer.size), writer.chance.randint(1, writer.size)))
    name = writer.name("g")
    for rank in range(writer.size):
        writer.say(rank, f"{name} = comm.new_group({members})")
    writer.groups[name] = tuple(members)
    assert line


def _objects(writer: Writer) -> None:
    """A collective of objects of unequal sizes."""
    chance = writer.chance
    writer.next_line()
    root, variable = chance.randrange(writer.size), writer.name("v")
    values = ["x" * chance.randint(0, 40) for _ in range(writer.size)]
    kind = chance.randrange(4)
    for rank in range(writer.size):
        mine = values if rank == root else [None] * writer.size
        text = (
            f"{variable} = comm.all_gather_object({values[rank]!r})",
            f"{variable} = comm.gather_object({values[rank]!r}, {root})",
            f"{variable} = {mine!r}; comm.broadcast_object_list({variable}, {root})",
            f"{variable} = comm.scatter_object_list({values if rank == root else None!r}, {root})",
        )[kind]
        writer.say(rank, f"{text}; keep({variable!r}, {variable})")


def _wait(writer: Writer) -> None:
    """Wait for one of the calls that are open, whichever was made first or last."""
    if not writer.pending:
        return
    writer.next_line()
    works = writer.pending.pop(writer.chance.randrange(len(writer.pending)))
    # The Work of a message, and some others, learn of the end by wait alone (Gloo.ended_only_by_wait).
    told = all(step.spelling in QUEUED for own in writer.steps for step in own if step.work in works.values())
    asks = told and writer.chance.random() < 0.2
    for rank, work in works.items():
        writer.say(rank, f"while not {work}.is_completed(): pass" if asks else f"{work}.wait()")


_PHASES: dict[Callable[[Writer], None], int] = {
    _collective: 8,
    _message: 3,
    _ring: 1,
    _new_group: 2,
    _objects: 1,
    _wait: 3,
}
