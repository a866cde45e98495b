"""Plays the steps of one rank of a scenario, whatever the ranks run on.

A subclass of :class:`Player` for one kind of tensors adds the making of tensors, the calls and the computation. Each
step runs inside a function whose code has the scenario's file and the step's line, so that records, stacks and findings
name that line, as they would name a line of a program.

The number and shapes of a step's tensors follow from its row and its c10d method.
A scenario gives one shape: that of the tensor where a call works in place, of one rank's part where one side has a part
for each rank, and of the whole where both sides do.
"""

from __future__ import annotations

import builtins
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from simcoll.simulation.operations import VERBS, Verb
from simcoll.simulation.rank_steps import steps_of
from simcoll.simulation.scenario import WORLD, BufferPlan, Relative, Scenario, ScenarioStep
from simcoll.spec.table import CollectiveSpec, Kind, Rooted

Shape: TypeAlias = "tuple[int, ...]"
Shapes: TypeAlias = "tuple[Shape, ...]"

_SPLITS: Mapping[str, str] = {"inputs": "input_splits", "outputs": "output_splits"}


def shapes_of(step: ScenarioStep, group_rank: int, group_size: int) -> dict[str, Shapes]:
    """The shapes of each role (``inout``, ``inputs``, ``outputs``) that the call takes, by role."""
    verb = VERBS[step.op]
    return {role: _role(step, verb, role, group_rank, group_size) for role in verb.spelling.buffers}


def own_role(verb: Verb) -> str:
    """The role that a scenario's ``buffer`` and ``shape`` describe; empty where a call takes no tensor."""
    if verb.spec.measured is None:
        return ""
    return "inout" if verb.spec.in_place else verb.spec.measured


def explicit_splits(verb: Verb) -> tuple[str, ...]:
    """The splits that are arguments of the call; a list of tensors implies its own."""
    return () if verb.spelling.listed else tuple(sorted(verb.spec.law_reads & set(_SPLITS.values())))


def _role(step: ScenarioStep, verb: Verb, role: str, group_rank: int, group_size: int) -> Shapes:
    spec = verb.spec
    if role not in spec.divided:
        return step.shapes
    if not _holds(spec, step.root, group_rank):
        return ()
    [shape] = step.shapes[:1]
    if verb.spelling.listed:
        return _listed(step, role, shape, group_size)
    if len(spec.divided) > 1:
        splits = getattr(step, _SPLITS[role])
        # The shape is that of the input; the size of the output follows from the splits.
        return ((sum(splits), *shape[1:]) if splits and role == "outputs" else shape,)
    return ((shape[0] * group_size, *shape[1:]) if shape else (group_size,),)


def _holds(spec: CollectiveSpec, root: int, group_rank: int) -> bool:
    """True if this rank has the divided side: only the root does, where there is one."""
    return spec.rooted is None or group_rank == root


def _listed(step: ScenarioStep, role: str, shape: Shape, group_size: int) -> Shapes:
    rows = getattr(step, _SPLITS[role]) or step.parts
    if rows is None:
        return (shape,) * group_size
    return tuple((each, *shape[1:]) for each in rows)


Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """A group as a rank uses it: the handle, the rank's group rank, the group's size."""

    handle: Any
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class PlayedCall(Generic[Tensor]):
    """A call with everything that it needs: the step, its verb, its group, its peer (a group rank), its tensors."""

    step: ScenarioStep
    verb: Verb
    group: JoinedGroup
    peer: int
    tensors: Mapping[str, Sequence[Tensor]]

    def role(self, name: str) -> Sequence[Tensor]:
        """The tensors of a role; in-place calls have the same ones as inputs and outputs."""
        return self.tensors.get(name, self.tensors.get("inout", ()))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a rank's call: the line of the call, and the sum over its outputs."""

    line: int
    total: complex


def write_results(folder: Path, rank: int, results: Sequence[Result]) -> None:
    """Write the results of a rank's calls into a folder, for :func:`read_results`."""
    document = [[each.line, each.total.real, each.total.imag] for each in results]
    (folder / f"rank{rank:05d}.json").write_text(json.dumps(document), encoding="utf-8")


def read_results(folder: Path, rank: int) -> list[Result]:
    """The results that a rank wrote; empty where it did not get so far."""
    try:
        rows = json.loads((folder / f"rank{rank:05d}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [Result(line, complex(real, imaginary)) for line, real, imaginary in rows]


class Player(ABC, Generic[Tensor]):
    """Plays one rank (global) of a scenario."""

    def __init__(self, scenario: Scenario, rank: int) -> None:
        self.scenario = scenario
        self.rank = rank
        self.results: list[Result] = []
        self._joined: dict[str, JoinedGroup | None] = {}
        self._buffers: dict[str, Tensor] = {}
        self._open: dict[str, list[tuple[object, PlayedCall[Tensor]]]] = {}
        # Tensors stay alive: dropping one would make another program.
        self._kept: list[object] = []
        self._line = _LineRunner(scenario.path)
        self._keeps = False

    def play(self) -> None:
        """Play all steps; raises what a call raises, and the exception of a crash."""
        self._joined[WORLD] = self.world()
        for plan in self.scenario.buffers:
            self._buffers[plan.name] = self._named(plan)
        steps = steps_of(self.scenario, self.rank)
        for step, self._keeps in zip(steps, _is_awaited(steps), strict=True):
            if step.op == "exit" and not step.exit_code:
                return
            self._line.run(step, lambda step=step: self._perform(step))  # type: ignore[misc]

    @abstractmethod
    def world(self) -> JoinedGroup:
        """The group of all ranks."""

    @abstractmethod
    def tensor(self, shape: tuple[int, ...], dtype: str, device: str, order: tuple[int, ...] | None) -> Tensor:
        """A tensor filled with the rank plus one."""

    @abstractmethod
    def rows(self, whole: Tensor, first: int, end: int) -> Tensor:
        """Some rows of a tensor, in the same memory."""

    @abstractmethod
    def total(self, tensor: Tensor) -> complex:
        """The sum over a tensor."""

    @abstractmethod
    def call(self, played: PlayedCall[Tensor]) -> object:
        """Make a call; returns the Work of an asynchronous one."""

    @abstractmethod
    def call_as_non_member(self, step: ScenarioStep, verb: Verb) -> None:
        """Make a call on a group that this rank is no member of."""

    @abstractmethod
    def wait(self, work: object) -> None:
        """Wait for the Work of an asynchronous call."""

    @abstractmethod
    def write(self, tensor: Tensor) -> None:
        """Write to a tensor."""

    @abstractmethod
    def spoil_next_result(self) -> None:
        """Have the next call bring a wrong element."""

    @abstractmethod
    def compute(self, seconds: float) -> None:
        """Compute for so many seconds."""

    @abstractmethod
    def parameters(self, step: ScenarioStep) -> None:
        """Declare a model's parameters as DistributedDataParallel does."""

    @abstractmethod
    def new_group(self, ranks: Sequence[int], name: str) -> JoinedGroup | None:
        """Make a group of global ranks; None where this rank is no member."""

    @abstractmethod
    def destroy_group(self, joined: JoinedGroup) -> None:
        """Destroy a group."""

    @abstractmethod
    def hang(self) -> NoReturn:
        """Block forever."""

    def _perform(self, step: ScenarioStep) -> None:
        if step.op in VERBS:
            self._call(step, VERBS[step.op])
        else:
            _ACTIONS[step.op](self, step)

    def _call(self, step: ScenarioStep, verb: Verb) -> None:
        joined = self._joined[step.group]
        if joined is None:
            self.call_as_non_member(step, verb)
            return
        played = PlayedCall(step, verb, joined, _peer(step, joined), self._tensors(step, verb, joined))
        self._kept.append(played.tensors)
        if step.spoils:
            self._spoil(played)
        work = self.call(played)
        if step.asynchronous or verb.asynchronous:
            # A Work that no later step waits for is dropped, as by a program that ignores a call's result.
            if not self._keeps:
                return
            self._open.setdefault(step.name or step.op, []).append((work, played))
        else:
            self._note(played)

    def _spoil(self, played: PlayedCall[Tensor]) -> None:
        """Have the call send an element that is no number, or bring a wrong one."""
        if played.step.spoils == "outputs":
            self.spoil_next_result()
            return
        for tensor in played.role("inputs")[:1]:
            flat: Any = self.rows(tensor, 0, 1)
            flat[...] = math.nan

    def _tensors(self, step: ScenarioStep, verb: Verb, joined: JoinedGroup) -> dict[str, list[Tensor]]:
        own = own_role(verb)
        found = {}
        for role, shapes in shapes_of(step, joined.rank, joined.size).items():
            named = step.buffer if role == own else step.output if role == "outputs" else ""
            if named:
                found[role] = [self._buffers[named]]
            else:
                found[role] = [self.tensor(shape, step.dtype, step.device, step.order) for shape in shapes]
        return found

    def _named(self, plan: BufferPlan) -> Tensor:
        if plan.of:
            return self.rows(self._buffers[plan.of], *plan.rows)
        return self.tensor(plan.shape, plan.dtype, "cpu", None)

    def _note(self, played: PlayedCall[Tensor]) -> None:
        """Note the result of a call, except where the standard leaves it undefined."""
        spec, root = played.verb.spec, played.step.root
        undefined = spec.rooted is Rooted.TO_ROOT and root != played.group.rank
        outputs = played.role("outputs")
        if outputs and not undefined and not (spec.kind is Kind.POINT_TO_POINT and "outputs" not in played.tensors):
            self.results.append(Result(played.step.line, sum(map(self.total, outputs), 0j)))

    def _wait(self, step: ScenarioStep) -> None:
        names = [step.of] if step.of else list(self._open)
        for name in names:
            for work, played in self._open.pop(name, []):
                self._kept.append(work)
                self.wait(work)
                self._note(played)

    def _new_group(self, step: ScenarioStep) -> None:
        self._joined[step.group] = self.new_group(self.scenario.members(step.group, self.rank), step.group)

    def _destroy_group(self, step: ScenarioStep) -> None:
        if (joined := self._joined[step.group]) is not None:
            self.destroy_group(joined)

    def _crash(self, step: ScenarioStep) -> NoReturn:
        raise exception_named(step.exception or "RuntimeError")(step.message or "the crash that the scenario states")

    def _exit(self, step: ScenarioStep) -> NoReturn:
        raise SystemExit(step.exit_code)


_ACTIONS: Mapping[str, Callable[[Player[Any], ScenarioStep], object]] = {
    "wait": lambda player, step: player._wait(step),
    "write": lambda player, step: player.write(player._buffers[step.buffer]),
    "compute": lambda player, step: player.compute(step.seconds),
    "parameters": lambda player, step: player.parameters(step),
    "new_group": lambda player, step: player._new_group(step),
    "destroy_group": lambda player, step: player._destroy_group(step),
    "crash": lambda player, step: player._crash(step),
    "exit": lambda player, step: player._exit(step),
    "hang": lambda player, step: player.hang(),
}


def exception_named(name: str) -> type[Exception]:
    """The built-in exception of this name, otherwise a new one."""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        return known
    return type(name, (RuntimeError,), {})


def _is_awaited(steps: Sequence[ScenarioStep]) -> list[bool]:
    """For each step, whether a later one waits for it."""
    names: set[str] = set()
    everything, found = False, []
    for step in reversed(steps):
        found.append(everything or (step.name or step.op) in names)
        if step.op == "wait":
            names.add(step.of)
            everything = everything or not step.of
    return found[::-1]


def _peer(step: ScenarioStep, joined: JoinedGroup) -> int:
    if isinstance(step.peer, Relative):
        return (joined.rank + step.peer.distance) % joined.size
    return step.peer


def _line_template(run: Callable[[], None]) -> None:
    run()


_BODY = _line_template.__code__
_NO_NAME = re.compile(r"\W+", re.ASCII)


class _LineRunner:
    """Runs functions as if a line of a file called them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._runners: dict[tuple[int, str], Callable[[Callable[[], None]], None]] = {}

    def run(self, step: ScenarioStep, function: Callable[[], None]) -> None:
        """Call ``function`` from the step's line; the calling function has the step's name."""
        key = step.line, step.name or step.op
        if key not in self._runners:
            self._runners[key] = FunctionType(_code_at(self._path, *key), {})
        self._runners[key](function)


def _code_at(path: str, line: int, name: str) -> CodeType:
    """The code of a function of this name, of which every line is that line."""
    # The body stands one line below the first one.
    return _BODY.replace(co_filename=path, co_firstlineno=max(line - 1, 0), co_name=_NO_NAME.sub("_", name))
