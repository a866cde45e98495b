"""`simcoll.estimate`: the cost of one collective on a topology."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import index
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeGuard

import networkx as nx

from simcoll.core.estimate import Bottleneck, Estimate
from simcoll.errors import SimcollError, TopologyError
from simcoll.estimator import nccl_tables
from simcoll.estimator.calibration import calibration
from simcoll.estimator.cost_patterns import bare_costs, load_of
from simcoll.estimator.curve import LARGEST, Curve, Lowest, lowest
from simcoll.estimator.measured import curves
from simcoll.estimator.measured import seconds as measured_seconds
from simcoll.estimator.nccl_tuner import before_first_step, chosen_from, curves_of, network_step, plain_curve, runs
from simcoll.estimator.shape import ClusterShape, shape_of
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import CollectiveSpec
from simcoll.topology.graph import LINKS, derived
from simcoll.topology.hardware import nearest
from simcoll.topology.placement import placement_of

if TYPE_CHECKING:
    from simcoll.core.estimate import Overheads

ENGINES = ("closed", "flow")

_LONGEST = 1e15  # seconds: 30 million years, past which sums overflow and JSON has no number
_NAME = (str, NoneType)
_EITHER = (True, False)


class EstimateError(SimcollError, ValueError):
    """An argument of `estimate` that describes no collective: what was given, what was expected."""


def estimate(
    op: str,
    size: int,
    topology: nx.DiGraph[Any],
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    engine: str = "closed",
    calibrated: bool = True,
    ranks: Sequence[int] | None = None,
) -> Estimate:
    """Returns the cost of ``op`` of ``size`` bytes on a topology, or on the ``ranks`` of it.

    ``size`` is as nccl-tests counts it: the larger of the send and the receive buffer, so the total for all_gather,
    reduce_scatter and all_to_all. ``algorithm`` is one of the op's row in the spec and ``protocol`` one of LL, LL128,
    Simple; where they are None, the least time wins, as in NCCL. ``calibrated=False`` prices the bare graph, without
    launches and protocols. A send goes from the first to the last of the ranks. Raises EstimateError for an argument
    that describes no collective, TopologyError for a graph that is no topology. Source: docs/estimator.md.
    """
    if not (type(op) is str and type(algorithm) in _NAME and type(protocol) in _NAME and calibrated in _EITHER):
        _check_choice(spec_named(op), algorithm, protocol, calibrated)
    group = None if ranks is None else _listed(ranks)
    question = _PlanKey("estimate", op, algorithm, protocol, calibrated, group)
    if type(size) is not int or not 0 <= size <= LARGEST:
        size = _size(size)
    plan = derived(topology, question, lambda graph: _plan(graph, question))
    found = plan.at(size)
    if found.seconds > _LONGEST:
        raise TopologyError(f"{op} of {size:,} bytes takes {found.seconds:g} s; expected links with real figures")
    return found if engine == "closed" else _flow(engine, size, topology, plan)


def seconds_on(op: str, size: int, shape: ClusterShape) -> float:
    """The seconds of ``op`` of ``size`` bytes on a group of which the numbers of the closed form are known."""
    return _chosen_on(op, shape).at(size).seconds(size)


@functools.lru_cache(maxsize=4096)
def _chosen_on(op: str, shape: ClusterShape) -> Lowest:
    return lowest(_candidates(spec_named(op), None, None, True, shape))


class _PlanKey(NamedTuple):
    """Cache key of a plan, kept with its topology: everything that is asked but the size."""

    kind: str
    op: str
    algorithm: str | None
    protocol: str | None
    calibrated: bool
    group: tuple[int, ...] | None


def _plan(graph: nx.DiGraph[Any], asked: _PlanKey) -> _Plan:
    """A topology that carries measurements is priced by them, and calls that they do not cover by its bare links."""
    known = curves(graph)
    if not known or not asked.calibrated or asked.protocol is not None:
        return _Plan(graph, asked)
    bare = asked._replace(calibrated=False)
    return _MeasuredPlan(graph, bare) if asked.algorithm is None and asked.op in known else _Plan(graph, bare)


class _Plan:
    """All that does not depend on the size, for one op, topology and choice of algorithms."""

    __slots__ = ("calibrated", "carries", "chosen", "group", "op", "shape", "traffic", "weighed")

    def __init__(self, graph: nx.DiGraph[Any], asked: _PlanKey) -> None:
        spec = spec_named(asked.op)
        _check_choice(spec, asked.algorithm, asked.protocol, asked.calibrated)
        self.group = _group(graph, spec, asked.group)
        shape = shape_of(graph, self.group)
        self.weighed = _candidates(spec, asked.algorithm, asked.protocol, asked.calibrated, shape)
        self.chosen = lowest(self.weighed)
        self.op, self.shape, self.calibrated = asked.op, shape, asked.calibrated
        self.traffic, self.carries = spec.traffic(shape.ranks), spec.measured is not None

    def at(self, size: int) -> Estimate:
        """The estimate for a size in bytes; a barrier has none."""
        if not self.carries:
            size = 0
        curve = self.chosen.at(size)
        seconds = curve.seconds(size)
        rate = size / seconds if seconds else 0.0
        return Estimate(
            self.op,
            size,
            self.shape.ranks,
            seconds,
            curve.algorithm,
            curve.protocol,
            rate * self.traffic,
            rate,
            _bottleneck(curve, rate),
            "closed",
            self.calibrated,
            curve.terms(size),
        )


class _MeasuredPlan(_Plan):
    """One op of a topology on which it was measured; the bare links have the choice where the engine needs one."""

    __slots__ = ("known",)

    def __init__(self, graph: nx.DiGraph[Any], asked: _PlanKey) -> None:
        super().__init__(graph, asked)
        self.known = curves(graph)

    def at(self, size: int) -> Estimate:
        """Returns the estimate for a size in bytes from the measurements; the model's where they do not cover it."""
        seconds = measured_seconds(self.known, self.op, size, self.shape.ranks)
        if seconds is None:
            return super().at(size)
        rate = size / seconds
        terms = (("measured", seconds),)
        bus = rate * self.traffic
        return Estimate(
            self.op, size, self.shape.ranks, seconds, "measured", None, bus, rate, None, "closed", True, terms
        )


def _bottleneck(curve: Curve, rate: float) -> Bottleneck | None:
    link = curve.link
    if link is None or not rate:
        return None
    return Bottleneck(link.source, link.target, link.kind, link.bandwidth, min(1.0, rate * curve.load / link.bandwidth))


def _candidates(
    spec: CollectiveSpec, algorithm: str | None, protocol: str | None, calibrated: bool, shape: ClusterShape
) -> list[Curve]:
    """The candidate curves, of which the least is the estimate; raises EstimateError if none fits the request."""
    if shape.ranks == 1:
        launch = calibration().launch if calibrated else 0.0
        return [Curve(spec.schedules[0], None, launch, 0.0, 0.0, 0.0, "intra", None, 0.0)]
    names = runs(spec) if algorithm is None else (algorithm,)
    if not calibrated:
        chosen = algorithm is not None
        curves = [_bare(spec.name, name, shape) for name in names if _wired(name, shape, chosen)]
    elif algorithm is None and protocol is None:
        curves = chosen_from(spec, shape, calibration())
    else:
        curves = [curve for name in names for curve in curves_of(spec.name, name, shape, calibration())]
    fitting = [curve for curve in curves if protocol in (None, curve.protocol)]
    if not fitting:
        raise EstimateError(_unavailable(spec.name, names, protocol, shape))
    return fitting


def _bare(op: str, algorithm: str, shape: ClusterShape) -> Curve:
    load = load_of(op, algorithm, bare_costs(shape))
    return plain_curve(algorithm, None, 0.0, load, load, shape)


def _wired(algorithm: str, shape: ClusterShape, chosen: bool) -> bool:
    """True if the switches can do it: NVLS wants NVSwitches that reduce, and domains on the right side of one.

    PAT can run anywhere, but NCCL itself takes it with one GPU in each domain only.
    """
    if algorithm in ("nvls", "nvls_tree"):
        return shape.sharp and (shape.domains > 1) == (algorithm == "nvls_tree")
    return algorithm != "pat" or chosen or shape.local == 1


def _unavailable(op: str, names: Sequence[str], protocol: str | None, shape: ClusterShape) -> str:
    how = " or ".join(names) + (f" in protocol {protocol}" if protocol else "")
    where = f"{shape.ranks} ranks in {shape.domains} NVLink domain{'s' if shape.domains > 1 else ''}"
    return f"{op} cannot run as {how} on {where} of {shape.family or 'an unknown GPU family'}; leave the choice out"


def spec_named(op: str) -> CollectiveSpec:
    """A row of the spec; raises EstimateError, which names the nearest."""
    spec = COLLECTIVES.get(op) if isinstance(op, str) else None
    if spec is None:
        raise EstimateError(f"unknown op {op!r}, expected {nearest(str(op).replace('-', '_'), COLLECTIVES)}")
    return spec


def _check_choice(spec: CollectiveSpec, algorithm: str | None, protocol: str | None, calibrated: bool) -> None:
    if algorithm is not None and algorithm not in spec.schedules:
        raise EstimateError(
            f"{spec.name} has no algorithm {algorithm!r}, expected {nearest(str(algorithm), spec.schedules)}"
        )
    if protocol is not None and protocol not in nccl_tables.PROTOCOLS:
        raise EstimateError(f"protocol is {protocol!r}, expected one of {', '.join(nccl_tables.PROTOCOLS)}")
    if calibrated not in _EITHER:
        raise EstimateError(f"calibrated is {calibrated!r}, expected True or False")
    if protocol is not None and not calibrated:
        raise EstimateError(f"protocol is {protocol!r}, but a bare graph has none; leave it out, or calibrated=False")


def _size(size: object) -> int:
    """Whole numbers of other types (numpy's) are sizes too; bools and floats are mistakes."""
    if _is_whole(size) and 0 <= index(size) <= LARGEST:
        return index(size)
    raise EstimateError(f"size is {size!r}, expected bytes: a whole number from 0 to {LARGEST}")


def _group(graph: nx.DiGraph[Any], spec: CollectiveSpec, group: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The ranks that take part; of a send or receive the first and the last."""
    world = len(placement_of(graph).gpus)
    if group is not None:
        _check_group(group, world)
    if spec.kind.value == "point-to-point":
        ends = group or tuple(range(world))
        return (ends[0], ends[-1]) if len(ends) > 1 else ends
    return group


def _check_group(group: tuple[int, ...], world: int) -> None:
    """Raise EstimateError for a group that names no ranks, others than there are, or one twice."""
    strange = [rank for rank in group if not 0 <= rank < world]
    if strange or not group:
        given = f"{strange[0]!r} among them" if strange else "none"
        raise EstimateError(f"ranks has {given}, expected ranks of the topology, from 0 to {world - 1}")
    if len(set(group)) < len(group):
        raise EstimateError(f"ranks names a rank twice: {list(group)!s:.80}; expected each once")


def _is_whole(value: object) -> TypeGuard[SupportsIndex]:
    """True for an integer; arrays of several numbers have `__index__` too, which raises."""
    try:
        index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(value, bool)


def _listed(ranks: object) -> tuple[int, ...]:
    if not isinstance(ranks, Iterable):
        raise EstimateError(f"ranks is {ranks!r:.80}, expected the ranks that take part, such as [0, 1, 2, 3]")
    group = tuple(ranks)
    if set(map(type, group)) != {int} and not all(_is_whole(rank) for rank in group):
        raise EstimateError(f"ranks is {group!r:.80}, expected whole numbers, such as [0, 1, 2, 3]")
    return group


def _flow(engine: str, size: int, topology: nx.DiGraph[Any], plan: _Plan) -> Estimate:
    """The other engine, with the algorithm and protocol that NCCL would choose where none is named.

    Where domains are not alike it has no schedule for some algorithms; the next best is taken then.
    """
    if engine != "flow":
        raise EstimateError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}")
    size = size if plan.carries else 0
    best = plan.chosen.at(size)
    others = sorted(plan.weighed, key=lambda curve: curve.seconds(size))
    refused: TopologyError | None = None
    for curve in (best, *(other for other in others if other.algorithm != best.algorithm)):
        try:
            return _flow_of(curve, size, topology, plan)
        except TopologyError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _flow_of(curve: Curve, size: int, topology: nx.DiGraph[Any], plan: _Plan) -> Estimate:
    from simcoll.estimator.flow.engine import price

    overheads = _overheads(curve, size, plan.shape) if plan.calibrated else None
    found = price(plan.op, size, topology, plan.group, curve.algorithm, overheads=overheads)
    return replace(found, protocol=curve.protocol)


def _overheads(curve: Curve, size: int, shape: ClusterShape) -> Overheads:
    """Returns a network step's seconds beyond the graph's latency, and the protocol's share of the links."""
    from simcoll.core.estimate import Overheads

    achieved = curve.achieved(size)
    return Overheads(
        launch=curve.launch + before_first_step(curve.algorithm, curve.protocol),
        step={"network": network_step(shape, calibration())},
        efficiency=dict.fromkeys(LINKS, achieved),
    )
