"""Bugs that are planted into random programs: each changes the steps of one rank, or of two."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from simcoll.backends.engine.world import SIMULATED
from simcoll.backends.gloo import GLOO
from simcoll.spec.collectives import METHODS
from tests.support.random_programs import DTYPES, OPS, Array, Program, Step, form, model_text

Steps = list[list[Step]]
Mutation = Callable[[random.Random, Program, Steps], "bool | None"]
"""Changes the steps in place; False where the program has nothing of the kind."""


def planted(chance: random.Random, program: Program, bug: str) -> Program | None:
    """The program with a bug of this kind, or None where it has no place for one."""
    steps = [list(own) for own in program.ranks]
    if BUGS[bug](chance, program, steps) is False:
        return None
    mutated = tuple(map(tuple, steps))
    if mutated == program.ranks or any(_too_much_for_gloo(program, step) for own in steps for step in own):
        return None
    return replace(program, ranks=mutated, bug=bug)


def _too_much_for_gloo(program: Program, step: Step) -> bool:
    """Whether Gloo refuses, or does not survive, what has a meaning: simulated ranks do all that has one."""
    if step.kind != "call":
        return False
    size = len(program.groups[step.group])
    refused = [any(backend.refusal(step.call(), rank, size) for rank in range(size)) for backend in (GLOO, SIMULATED)]
    return refused == [True, False]


def _collectives(program: Program, steps: Steps, wanted: Callable[[Step], bool] = lambda step: True) -> list[int]:
    """The lines of collectives that more than one rank makes."""
    found = {
        step.line
        for own in steps
        for step in own
        if step.kind == "call" and len(program.groups[step.group]) > 1 and wanted(step)
    }
    return sorted(found)


def _on_one_rank(change: Callable[[random.Random, Program, Step], Step | None], *fields: str) -> Mutation:
    """Change one rank's call of a collective; it must state at least one of these fields, if any are named."""

    def mutate(chance: random.Random, program: Program, steps: Steps) -> bool | None:
        lines = _collectives(program, steps, lambda step: not fields or any(_states(step, name) for name in fields))
        if not lines:
            return False
        line = chance.choice(lines)
        rank, place = chance.choice(_places(steps, line))
        changed = change(chance, program, steps[rank][place])
        if changed is None:
            return False
        steps[rank][place] = changed
        return None

    return mutate


def _states(step: Step, name: str) -> bool:
    value = getattr(step, name)
    return value is not None and value != ()


def _places(steps: Steps, line: int) -> list[tuple[int, int]]:
    return [(rank, place) for rank, own in enumerate(steps) for place, step in enumerate(own) if step.line == line]


def _other_op(chance: random.Random, program: Program, step: Step) -> Step:
    while True:
        other = _some_call(chance, program, step, step.line)
        if METHODS[other.spelling][0] is not METHODS[step.spelling][0]:
            return replace(other, work=step.work)


def _some_call(chance: random.Random, program: Program, step: Step, line: int) -> Step:
    """A call of the same group that is right by itself."""
    while True:
        spelling = chance.choice(("allreduce", "broadcast", "barrier", "allgather"))
        made = form(chance, spelling, step.group, len(program.groups[step.group]), line)
        if not any(GLOO.refusal(one.call(), place, len(made)) for place, one in enumerate(made)):
            return made[0]


def _other_dtype(chance: random.Random, program: Program, step: Step) -> Step | None:
    if _is_complex(step):
        return None
    dtype = chance.choice(
        [one for one in DTYPES if one not in {array.dtype for array in (*step.inputs, *step.outputs)}]
    )
    return _with_arrays(step, lambda array: replace(array, dtype=dtype))


def _with_arrays(step: Step, change: Callable[[Array], Array]) -> Step:
    return replace(step, inputs=tuple(map(change, step.inputs)), outputs=tuple(map(change, step.outputs)))


def _larger(chance: random.Random, program: Program, step: Step) -> Step:
    """Each buffer doubled along its first dimension."""
    return _with_arrays(
        step, lambda array: replace(array, shape=(2 * array.shape[0], *array.shape[1:]) if array.shape else (2,))
    )


def _reshaped(chance: random.Random, program: Program, step: Step) -> Step | None:
    if not all(len(array.shape) > 1 and array.shape[0] != array.shape[-1] for array in (*step.inputs, *step.outputs)):
        return None
    return _with_arrays(step, lambda array: replace(array, shape=array.shape[::-1]))


def _other_reduction(chance: random.Random, program: Program, step: Step) -> Step:
    allowed = [one for one in OPS if one != step.reduce_op and one in ("sum", "min", "max", "product")]
    return replace(step, reduce_op=chance.choice(allowed))


def _other_root(chance: random.Random, program: Program, step: Step) -> Step | None:
    size = len(program.groups[step.group])
    if step.root is None or not step.in_place:
        return None
    return replace(step, root=(step.root + chance.randint(1, size - 1)) % size)


def _other_splits(chance: random.Random, program: Program, step: Step) -> Step | None:
    """One row more to one rank and one less to another, of what is sent."""
    sent = list(step.input_splits or ())
    givers = [place for place, count in enumerate(sent) if count]
    if not givers or not step.inputs or 0 in step.inputs[0].shape[1:]:
        return None
    giver = chance.choice(givers)
    taker = (giver + 1) % len(sent)
    sent[giver], sent[taker] = sent[giver] - 1, sent[taker] + 1
    return replace(step, input_splits=tuple(sent))


def _root_outside(chance: random.Random, program: Program, step: Step) -> Step | None:
    return None if step.root is None or not step.in_place else replace(step, root=len(program.groups[step.group]) + 1)


def _skipped(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    lines = _collectives(program, steps)
    if not lines:
        return False
    rank, place = chance.choice(_places(steps, chance.choice(lines)))
    _drop(steps, rank, place)
    return None


def _drop(steps: Steps, rank: int, place: int) -> None:
    """Leave out a step, and the wait for it."""
    dropped = steps[rank].pop(place)
    if dropped.work:
        steps[rank][:] = [step for step in steps[rank] if step.text != f"{dropped.work}.wait()"]


def _extra(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    lines = _collectives(program, steps)
    if not lines:
        return False
    line = chance.choice(lines)
    rank, place = chance.choice(_places(steps, line))
    step = steps[rank][place]
    steps[rank].insert(place + 1, _some_call(chance, program, step, line + 5))
    return None


def _swapped(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    """Two collectives of a group, one after the other, the other way round on one rank."""
    rank = chance.randrange(len(steps))
    calls = [place for place, step in enumerate(steps[rank]) if step.kind == "call" and not step.work]
    pairs = [
        (one, other)
        for one, other in pairwise(calls)
        if steps[rank][one].group == steps[rank][other].group and len(program.groups[steps[rank][one].group]) > 1
    ]
    if not pairs:
        return False
    one, other = chance.choice(pairs)
    # The later line runs first: each keeps its place in the text, and says what the other said.
    first, second = steps[rank][one], steps[rank][other]
    steps[rank][one] = replace(second, line=first.line)
    steps[rank][other] = replace(first, line=second.line)
    return None


def _messages(steps: Steps, spelling: str = "") -> list[tuple[int, int]]:
    return [
        (rank, place)
        for rank, own in enumerate(steps)
        for place, step in enumerate(own)
        if step.kind == "message" and step.spelling.startswith(spelling)
    ]


def _on_message(spelling: str, change: Callable[[Step], Step | None]) -> Mutation:
    def mutate(chance: random.Random, program: Program, steps: Steps) -> bool | None:
        # torch.distributed sends complex numbers as pairs of real ones.
        places = [(rank, place) for rank, place in _messages(steps, spelling) if not _is_complex(steps[rank][place])]
        if not places:
            return False
        rank, place = chance.choice(places)
        changed = change(steps[rank][place])
        if changed is None:
            _drop(steps, rank, place)
        else:
            steps[rank][place] = changed
        return None

    return mutate


def _is_complex(step: Step) -> bool:
    return any(array.dtype.startswith("complex") for array in (*step.inputs, *step.outputs))


def _message_dtype(step: Step) -> Step:
    return _with_arrays(step, lambda array: replace(array, dtype="float32" if array.dtype != "float32" else "int32"))


def _ends(chance: random.Random, steps: Steps, text: str) -> bool | None:
    ranks = [rank for rank, own in enumerate(steps) if own]
    if not ranks:
        return False
    rank = chance.choice(ranks)
    place = chance.randrange(len(steps[rank]))
    if _open_messages(steps[rank], place):
        # Whether a message whose Work is gone still arrives is a matter of time on Gloo.
        return False
    line = steps[rank][place].line
    steps[rank][place:] = [Step(line, "text", text=text)]
    return None


def _open_messages(own: list[Step], place: int) -> bool:
    """Whether a message is in flight before a step."""
    begun = {step.work for step in own[:place] if step.kind == "message" and step.work}
    return bool(begun - {step.text.removesuffix(".wait()") for step in own[:place]})


def _exits(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    return _ends(chance, steps, "return")


def _raises(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    return _ends(chance, steps, "1 / 0")


def _asynchronous(steps: Steps, wanted: Callable[[Step], bool] = lambda step: True) -> list[tuple[int, int, int]]:
    """The calls in flight: rank, place of the call, place of its wait."""
    return [
        (rank, place, wait)
        for rank, own in enumerate(steps)
        for place, step in enumerate(own)
        for wait, later in enumerate(own)
        if step.kind == "call" and step.work and later.text == f"{step.work}.wait()" and wanted(step)
    ]


def _never_waited(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    found = _asynchronous(steps)
    if not found:
        return False
    rank, _, wait = chance.choice(found)
    del steps[rank][wait]
    return None


def _changed(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    found = _asynchronous(steps, _can_be_changed)
    if not found:
        return False
    rank, place, _ = chance.choice(found)
    step = steps[rank][place]
    steps[rank].insert(place + 1, Step(step.line + 1, "text", text=f"{step.inputs[0].name} += 1"))
    return None


def _can_be_changed(step: Step) -> bool:
    return (
        bool(step.work)
        and step.spelling == "allreduce"
        and 0 not in step.inputs[0].shape
        and step.inputs[0].dtype not in ("bool", "complex64")
    )


def _overlapping(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    """Every rank reduces a buffer again that is still being reduced."""
    lines = _collectives(program, steps, _can_be_changed)
    if not lines:
        return False
    line = chance.choice(lines)
    for rank, place in _places(steps, line):
        step = steps[rank][place]
        if step.kind != "call":
            continue
        name = step.inputs[0].name
        text = f"{step.group}.call('allreduce', [{name}], [{name}], reduce_op='max')"
        steps[rank].insert(place + 1, Step(line + 1, "text", text=text))
    return None


def _groups(steps: Steps) -> list[int]:
    return sorted({step.line for own in steps for step in own if "new_group" in step.text})


def _other_members(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    lines = _groups(steps)
    if not lines:
        return False
    line = chance.choice(lines)
    rank = chance.randrange(len(steps))
    for place, step in enumerate(steps[rank]):
        if step.line == line:
            name = step.text.partition(" = ")[0]
            members = program.groups[name]
            other = [one for one in range(len(steps)) if one not in members][:1] or list(members)[:-1]
            wanted = sorted({*other, rank} | ({*members} if chance.random() < 0.5 else set()))
            if tuple(wanted) == members:
                return False
            steps[rank][place] = replace(step, text=f"{name} = comm.new_group({wanted})")
    return None


def _not_made(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    lines = _groups(steps)
    if not lines:
        return False
    line = chance.choice(lines)
    rank = chance.randrange(len(steps))
    name = next(step.text.partition(" = ")[0] for own in steps for step in own if step.line == line)
    steps[rank][:] = [step for step in steps[rank] if step.line != line and step.group != name]
    return None


def _outside(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    rank = chance.randrange(len(steps))
    place = chance.randrange(len(steps[rank]) + 1)
    line = steps[rank][place - 1].line + 3 if place else 2
    steps[rank].insert(place, Step(line, "text", text="comm.outside('all_reduce')"))
    return None


def _caught(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    """A reduction that one rank asks for otherwise; all ranks catch what is raised, and go on."""
    lines = _collectives(program, steps, lambda step: step.reduce_op is not None and not step.work)
    if not lines:
        return False
    places = _places(steps, chance.choice(lines))
    guilty = chance.choice(places)
    for rank, place in places:
        step = replace(steps[rank][place], caught=True)
        steps[rank][place] = _other_reduction(chance, program, step) if (rank, place) == guilty else step
    return None


def _swapped_groups(chance: random.Random, program: Program, steps: Steps) -> bool | None:
    """Two groups made in another order on one rank."""
    rank = chance.randrange(len(steps))
    made = [place for place, step in enumerate(steps[rank]) if "new_group" in step.text]
    if len(made) != 2 or made[1] != made[0] + 1:
        return False
    one, other = made
    first, second = steps[rank][one], steps[rank][other]
    steps[rank][one], steps[rank][other] = replace(second, line=first.line), replace(first, line=second.line)
    return None


def _other_model(chance: random.Random, program: Program, steps: Steps) -> None:
    """One rank trains another model."""
    named = [(f"layer{number}", (chance.randint(1, 3), 2), "float32") for number in range(3)]
    other, place = list(named), chance.randrange(3)
    name, shape, dtype = other[place]
    other[place] = chance.choice([(name, shape, "float64"), (name, (4, *shape[1:]), dtype), ("other", shape, dtype)])
    line, rank = 10 + max((step.line for own in steps for step in own), default=0), chance.randrange(len(steps))
    for one, own in enumerate(steps):
        own[:] = [step for step in own if "state_parameters" not in step.text]
        own.append(Step(line, "text", text=model_text(other if one == rank else named)))


BUGS: Mapping[str, Mutation] = MappingProxyType(
    {
        "op": _on_one_rank(_other_op),
        "dtype": _on_one_rank(_other_dtype, "inputs", "outputs"),
        "size": _on_one_rank(_larger, "inputs", "outputs"),
        "shape": _on_one_rank(_reshaped, "inputs", "outputs"),
        "reduce op": _on_one_rank(_other_reduction, "reduce_op"),
        "root": _on_one_rank(_other_root, "root"),
        "root outside": _on_one_rank(_root_outside, "root"),
        "splits": _on_one_rank(_other_splits, "input_splits"),
        "skipped": _skipped,
        "extra": _extra,
        "swapped": _swapped,
        "tag": _on_message("", lambda step: replace(step, tag=step.tag + 1)),
        "message size": _on_message("send", lambda step: _larger(random.Random(0), None, step)),
        "message dtype": _on_message("", _message_dtype),
        "no send": _on_message("send", lambda step: None),
        "no receive": _on_message("recv", lambda step: None),
        "early exit": _exits,
        "exception": _raises,
        "never waited": _never_waited,
        "changed": _changed,
        "overlapping": _overlapping,
        "caught": _caught,
        "members": _other_members,
        "swapped groups": _swapped_groups,
        "model": _other_model,
        "not made": _not_made,
        "outside": _outside,
    }
)
"""The kinds of bugs, by name."""
