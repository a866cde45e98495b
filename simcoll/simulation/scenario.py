"""A scenario as a value: ranks, groups, each rank's calls, faults, and the expected findings.

A scenario comes from a file (:mod:`simcoll.simulation.reader`), is turned into one list of steps for each rank
(:mod:`simcoll.simulation.rank_steps`), and that list is played on a backend. All classes are frozen and free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from simcoll.core.toml import TomlError
from simcoll.spec.call import ANY_SOURCE
from simcoll.topology.request import TopologyRequest

WORLD: Final = ""
"""The group of a call that names none: all ranks."""


class ScenarioError(TomlError):
    """A scenario that contradicts itself or cannot be played; one line that names the file, the line and the key."""


@dataclass(frozen=True, slots=True)
class Relative:
    """A peer by its distance in the group, modulo its size: ``+1`` is the next rank."""

    distance: int


Peer: TypeAlias = "int | Relative"


@dataclass(frozen=True, slots=True)
class ScenarioParameter:
    """One parameter of a model: its name, its shape, its dtype, whether it is trained."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    trained: bool = True


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """One step of a rank: a call of torch.distributed, an action, or an end that a fault inserts.

    ``op`` is one of :data:`~simcoll.simulation.operations.VERBS` or :data:`~simcoll.simulation.operations.ACTIONS`, or
    how a fault ends a rank: ``crash`` with an exception, ``exit`` with an exit code, ``hang`` never. ``line`` is its
    line in the file, ``shapes`` one shape for each tensor of the call. Roots and peers are group ranks, splits and
    parts count rows. ``buffer`` and ``output`` name buffers; ``of`` names the calls that a wait is for. ``order`` lists
    the dimensions, outermost in memory first.
    """

    op: str
    line: int
    name: str = ""
    group: str = WORLD
    shapes: tuple[tuple[int, ...], ...] = ((4,),)
    dtype: str = "float32"
    device: str = "cpu"
    order: tuple[int, ...] | None = None
    reduce_op: str = "sum"
    root: int = 0
    peer: Peer = ANY_SOURCE
    tag: int = 0
    input_splits: tuple[int, ...] | None = None
    output_splits: tuple[int, ...] | None = None
    parts: tuple[int, ...] | None = None
    asynchronous: bool = False
    buffer: str = ""
    output: str = ""
    of: str = ""
    seconds: float = 0.0
    parameters: tuple[ScenarioParameter, ...] = ()
    exception: str = ""
    message: str = ""
    exit_code: int = 0
    spoils: str = ""


@dataclass(frozen=True, slots=True)
class Override:
    """Fields of a :class:`ScenarioStep` that differ on some ranks (global)."""

    ranks: frozenset[int]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A ``[[calls]]`` entry: the step, the ranks that make it (None: the group's members), and overrides."""

    step: ScenarioStep
    ranks: frozenset[int] | None = None
    overrides: tuple[Override, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """A ``[[calls]]`` entry with ``repeat``: its calls, so many times, on ``ranks`` (None: all)."""

    repeat: int
    calls: tuple[CallPlan | Loop, ...]
    line: int
    ranks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A process group: its members (global ranks), the ranks that create it, and those that create it differently."""

    name: str
    ranks: tuple[int, ...]
    line: int
    made_by: frozenset[int] | None = None
    variants: tuple[tuple[frozenset[int], tuple[int, ...]], ...] = ()

    def members(self, rank: int) -> tuple[int, ...]:
        """The members that a rank (global) declares."""
        return next((members for ranks, members in self.variants if rank in ranks), self.ranks)


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """A named tensor; with ``of`` the rows from ``rows[0]`` to ``rows[1]`` of another one, in the same memory."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    line: int
    of: str = ""
    rows: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its ranks (global), its call, and the number of the repetition, from 1 (0: every one).

    ``call`` is a call's name or its op, ``at`` the number of the rank's call, from 1 (0: not used).
    """

    kind: str
    ranks: frozenset[int]
    line: int
    call: str = ""
    at: int = 0
    iteration: int = 0
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class ScenarioLink:
    """A path between two ranks with ``factor`` of its bandwidth and ``latency`` more seconds."""

    between: tuple[int, int]
    factor: float
    latency: float
    line: int


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected finding; fields that are None are not compared. Ranks are global."""

    code: str
    culprits: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    sequence: int | None = None
    group: str | None = None
    severity: str | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected result: exactly these findings; ``seconds`` of virtual time, up to a fraction ``within``."""

    findings: tuple[Expected, ...] = ()
    seconds: float | None = None
    within: float = 0.01


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole file. ``topology`` is the one that its table asks for, None where it has none."""

    path: str
    title: str
    description: str
    ranks: int
    calls: tuple[CallPlan | Loop, ...]
    groups: tuple[GroupPlan, ...] = ()
    buffers: tuple[BufferPlan, ...] = ()
    faults: tuple[Fault, ...] = ()
    slow_links: tuple[ScenarioLink, ...] = ()
    topology: TopologyRequest | None = None
    sends: str = "synchronous"
    seed: int = 0
    values: str = "off"
    expect: Expectation | None = None

    def group(self, name: str) -> GroupPlan | None:
        """The group of this name; None for the world."""
        return next((group for group in self.groups if group.name == name), None)

    def members(self, name: str, rank: int) -> Sequence[int]:
        """The members of a group that a rank (global) declares."""
        group = self.group(name)
        return range(self.ranks) if group is None else group.members(rank)

    def error(self, line: int, problem: str) -> ScenarioError:
        """An error about a line of the file."""
        return ScenarioError(f"{self.path}, line {line}: {problem}")
