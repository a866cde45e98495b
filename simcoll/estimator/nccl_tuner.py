"""The cost of a collective in NCCL, by algorithm and protocol: its tuner's formulas with measured constants.

NCCL computes a latency and a bandwidth for each pair and takes the pair with the least time (2.30.7,
``src/graph/tuning.cc``). So does this, with two differences: bandwidths are those that were achieved, and a pipeline
needs time to fill. Operations unknown to the tuner (exchanges, gather, scatter, send) are priced beside it, and
algorithms that NCCL does not have with the costs of its steps in protocol Simple.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simcoll.estimator import nccl_tables as tables
from simcoll.estimator.calibration import Calibration, FabricConstants, Generation, has_nvls
from simcoll.estimator.cost_patterns import Costs, Load, bare_costs, load_of, tree_share
from simcoll.estimator.curve import Curve
from simcoll.estimator.nccl_tables import LL, LL128, PROTOCOLS, SIMPLE
from simcoll.estimator.shape import ClusterShape
from simcoll.spec.table import CollectiveSpec
from simcoll.topology.placement import Link

_EXCHANGES = ("pairwise", "direct")


@dataclass(frozen=True, slots=True)
class _Operation:
    """How NCCL runs an operation.

    By which ``algorithms``, if not by the first schedule of its row alone (``tuning.cc``; grouped sends). ``fills``
    says that a ring is a pipeline to fill: in an all_gather all ranks send from the first step on, and add nothing.
    """

    algorithms: tuple[str, ...] = ()
    fills: bool = True


_OPERATIONS = {
    "all_reduce": _Operation(("ring", "tree", "nvls", "nvls_tree")),
    "all_gather": _Operation(("ring", "nvls", "pat"), fills=False),
    "reduce_scatter": _Operation(("ring", "nvls", "pat")),
    "barrier": _Operation(("ring", "tree")),
}
_OTHER = _Operation()

_ANY = ("ring", "tree", "nvls", "nvls_tree", "pat")


@dataclass(frozen=True, slots=True)
class _Settings:
    """What NCCL may choose on a fabric; with ``last`` only for GPUs known to be of that generation or before."""

    algorithms: tuple[str, ...]
    protocols: tuple[str, ...]
    last: int | None = None

    def hold_for(self, family: str | None) -> bool:
        return self.last is None or tables.GENERATIONS.get(family or "", self.last + 1) <= self.last


_CONFIGURED = {
    "tcpx": _Settings(("ring",), ("Simple",)),
    "tcpxo": _Settings(("ring", "tree"), ("LL128", "Simple")),
    "efa": _Settings(_ANY, ("Simple",), last=tables.AMPERE),
}
"""Google's settings for its networks: NCCL_ALGO, NCCL_PROTO, NCCL_NVLS_ENABLE=0 (GPUDirect-TCPX and -TCPXO). Before
Hopper's servers EFA has no RDMA writes that arrive in order, which LL and LL128 need: Amazon's plugin sets
NCCL_PROTO=simple (aws-ofi-nccl, ``platform-aws.c``: protocol SENDRECV for p4d and p4de, RDMA from p5 on)."""

_FREE = _Settings(_ANY, PROTOCOLS)


def runs(spec: CollectiveSpec) -> tuple[str, ...]:
    """Returns those of a row's schedules that NCCL would run."""
    return _OPERATIONS.get(spec.name, _OTHER).algorithms or spec.schedules[:1]


def chosen_from(spec: CollectiveSpec, shape: ClusterShape, constants: Calibration) -> list[Curve]:
    """The curves that NCCL chooses from, as the fabric configures it."""
    curves = [curve for name in runs(spec) for curve in curves_of(spec.name, name, shape, constants)]
    if shape.domains == 1:
        return curves
    settings = _CONFIGURED.get(shape.fabric or "", _FREE)
    may = settings if settings.hold_for(shape.family) else _FREE
    return [
        curve
        for curve in curves
        if curve.protocol in may.protocols and (curve.algorithm in may.algorithms or curve.algorithm not in _ANY)
    ]


def _generation(shape: ClusterShape) -> int:
    """The tables' row; an unknown GPU is like an A100."""
    return tables.GENERATIONS.get(shape.family or "", tables.AMPERE)


def curves_of(op: str, algorithm: str, shape: ClusterShape, constants: Calibration) -> list[Curve]:
    """One curve per protocol in which NCCL runs ``op`` with this algorithm on this shape; empty if there is none."""
    return list(_Tuner(shape, constants).curves(op, algorithm))


def before_first_step(algorithm: str, protocol: str | None) -> float:
    """Seconds between the launch and the first step: NCCL's base latency, or the reduction in the switch."""
    if algorithm in ("nvls", "nvls_tree"):
        return tables.NVLS_LATENCY
    base = tables.BASE_LATENCY.get(algorithm, tables.BASE_LATENCY["ring"])
    return base[PROTOCOLS.index(protocol or "Simple")]


def network_step(shape: ClusterShape, constants: Calibration) -> float:
    """Seconds that a fabric adds to a step across it."""
    return constants.fabric(shape.fabric).step


@dataclass(frozen=True, slots=True)
class _Sides:
    """Seconds a byte takes within domains and between them, bare and as achieved."""

    inside: float
    outside: float
    ideal_inside: float
    ideal_outside: float
    load_inside: float
    load_outside: float


class _Tuner:
    """The tuner for one shape."""

    def __init__(self, shape: ClusterShape, constants: Calibration) -> None:
        self.shape, self.constants = shape, constants
        self.index = _generation(shape)
        self.generation: Generation = constants.generation(self.index)
        self.fabric: FabricConstants = constants.fabric(shape.fabric)
        self.near = "nvlink" if shape.inside is None or shape.inside.kind == "nvlink" else "pcie"
        self.several = shape.domains > 1
        self.levels = math.log2(shape.domains)

    def curves(self, op: str, algorithm: str) -> Iterator[Curve]:
        """By the algorithm's own formula where NCCL has one."""
        if algorithm == "ring":
            yield from self._ring("all_reduce" if op == "barrier" else op)
        elif algorithm == "tree" and op in ("all_reduce", "barrier"):
            yield from self._tree()
        elif algorithm in ("nvls", "nvls_tree", "pat"):
            yield from self._special(op, algorithm)
        elif op == "all_to_all" and algorithm in _EXCHANGES:
            yield self._exchange(algorithm)
        else:
            yield self._other(op, algorithm)

    def _special(self, op: str, algorithm: str) -> Iterator[Curve]:
        """NVLS needs switches that reduce, NVLS-tree several domains of them, PAT one GPU in each."""
        shape = self.shape
        if algorithm == "pat":
            if self.several and shape.local == 1:
                yield self._pat()
        elif shape.sharp and has_nvls(self.index) and self.several == (algorithm == "nvls_tree"):
            yield self._nvls(op, algorithm)

    def _ring(self, op: str) -> Iterator[Curve]:
        n, m = self.shape.ranks, self.shape.domains
        passes = 2 if op == "all_reduce" else 1
        rooted = op in ("broadcast", "reduce")
        steps, crossing, share = passes * (n - 1), passes * (m - 1), 1.0 if rooted else passes * (n - 1) / n
        sides = self._sides(share, share, self.constants.ring, self.fabric.bandwidth * self.fabric.ring)
        fill = self._chain_fill() if _OPERATIONS.get(op, _OTHER).fills else 0.0
        for protocol in self._protocols():
            latency = tables.BASE_LATENCY["ring"][protocol] + (steps - crossing) * self._near_step("ring", protocol)
            latency += crossing * self._far_step("ring", protocol)
            low = tables.LL_RING_SHARE * (self.constants.ll_ring if self.several else 1.0)
            factor = (low, tables.LL128_RING_SHARE * self.constants.ll128, 1.0)[protocol]
            cap = self._ll_cap(share) if protocol == LL else 0.0
            yield self._curve("ring", protocol, latency, sides, factor, cap, fill if protocol != LL else 0.0)

    def _tree(self) -> Iterator[Curve]:
        shape, several = self.shape, self.several
        share = tables.TREE_SHARE * self.constants.ring
        sides = self._sides(2.0, tree_share(shape.domains), share, self.fabric.bandwidth)
        cap = 2 / tables.ll_bandwidth(self.index, shape.domains, shape.cpu)
        fill = self._chain_fill()
        for protocol in self._protocols():
            steps = (shape.local - 1) * tables.STEP_LATENCY[self.near]["tree"][protocol]
            steps += self.levels * self._far_step("tree", protocol)
            latency = tables.BASE_LATENCY["tree"][protocol] + 2 * steps
            ll128 = tables.LL128_TREE_SHARE[several] * self.constants.ll128
            factor = (tables.LL_TREE_SHARE, ll128, 1.0)[protocol]
            filling = (0.0, fill * self.constants.fill_tree, fill)[protocol]
            table = tables.TREE_CORRECTION[protocol]
            yield self._curve("tree", protocol, latency, sides, factor, cap * (protocol == LL), filling, table)

    def _nvls(self, op: str, algorithm: str) -> Curve:
        """A rank's links carry all bytes, and in an all_reduce, where it adds one part up, that part again."""
        shape, constants = self.shape, self.constants
        passed = (shape.ranks - 1) / shape.ranks
        load, least = (1 + 1 / shape.local, 2 * passed / self.generation.nvls) if op == "all_reduce" else (1.0, 0.0)
        achieved = load / max(load / constants.ring, least)
        sides = self._sides(load, tree_share(shape.domains), achieved, self.fabric.bandwidth)
        step = tables.NVLS_TREE_STEP + self.fabric.step
        latency = tables.NVLS_LATENCY + 2 * self.levels * step
        fill = constants.fill_nvls * shape.local / 8 + self._network_fill() * self.levels
        return self._curve(algorithm, SIMPLE, latency, sides, 1.0, 0.0, fill)

    def _pat(self) -> Curve:
        """NCCL's own terms; its steps across the network overlap."""
        n = self.shape.ranks
        share, achieved = (n - 1) / n, tables.PAT_BANDWIDTH * self.fabric.bandwidth * self.fabric.ring
        sides = self._sides(share, share, self.constants.ring, achieved)
        step = tables.STEP_LATENCY["network"]["pat"][SIMPLE] + self.fabric.step
        latency = tables.BASE_LATENCY["pat"][SIMPLE] + math.log2(n) * step / tables.PAT_STEPS_AT_ONCE
        latency += n * tables.PAT_RANK
        return self._curve("pat", SIMPLE, latency, sides, 1.0, 0.0, self._network_fill() * max(1.0, self.levels))

    def _exchange(self, algorithm: str) -> Curve:
        """Every rank with every other; across the network all pieces count, since those within a domain wait too.

        The two steps across the network are a receiver's leave to send, and the data.
        """
        shape, constants = self.shape, self.constants
        share = (shape.ranks - 1) / shape.ranks
        crowd = share * shape.local * shape.ring_network / shape.crowd_network if self.several else 0.0
        sides = self._sides(share, crowd, constants.ring, self.fabric.bandwidth * constants.exchange)
        latency = constants.exchange_base + constants.exchange_peer * (shape.ranks - 1)
        latency += 2 * self._far_step("tree", LL)
        return self._curve(algorithm, SIMPLE, latency, sides, 1.0, 0.0, constants.fill_chain)

    def _other(self, op: str, algorithm: str) -> Curve:
        """Any schedule, at the cost of NCCL's steps and at achieved bandwidths."""
        shape, constants = self.shape, self.constants
        achieved = self.fabric.bandwidth * self.fabric.ring
        costs = Costs(
            shape.ranks,
            shape.domains,
            shape.root_local,
            self._near_step("ring", SIMPLE),
            self._far_step("ring", SIMPLE),
            shape.inside_bandwidth * constants.ring,
            shape.ring_network * achieved,
            shape.exchange_network * constants.exchange,
            shape.root_network * achieved,
        )
        load, bare = load_of(op, algorithm, costs), load_of(op, algorithm, bare_costs(shape))
        launch = self._launch() + tables.BASE_LATENCY["ring"][LL]
        return plain_curve(algorithm, PROTOCOLS[SIMPLE], launch, load, bare, shape)

    def _curve(
        self,
        algorithm: str,
        protocol: int,
        latency: float,
        sides: _Sides,
        factor: float,
        cap: float,
        fill: float,
        correction: tuple[float, ...] = (),
    ) -> Curve:
        """``factor`` is the protocol's share of the bandwidth, ``cap`` the least seconds that a byte takes."""
        out = sides.outside > sides.inside
        slow = 1.0 if protocol == SIMPLE else self.generation.latency
        return Curve(
            algorithm,
            PROTOCOLS[protocol],
            self._launch(),
            slow * latency + (self.fabric.once if self.several else 0.0),
            max(max(sides.inside, sides.outside) / factor, cap),
            sides.ideal_outside if out else sides.ideal_inside,
            "inter" if out else "intra",
            self.shape.outside if out else self.shape.inside,
            sides.load_outside if out else sides.load_inside,
            fill,
            self.constants.fill_reach,
            self.fabric.overlap if self.several else 0.0,
            correction,
        )

    def _launch(self) -> float:
        return self.constants.launch + self.generation.launch

    def _protocols(self) -> tuple[int, ...]:
        """LL128 needs stores of 128 bytes that arrive whole: NVLink inside, and RDMA outside."""
        return (LL, LL128, SIMPLE) if self.near == "nvlink" else (LL, SIMPLE)

    def _near_step(self, algorithm: str, protocol: int) -> float:
        step = tables.STEP_LATENCY[self.near][algorithm][protocol]
        return max(step, tables.net_overhead(self.shape.cpu, protocol)) if self.several else step

    def _far_step(self, algorithm: str, protocol: int) -> float:
        """With one GPU in each domain NCCL takes a tree's latency for a ring's as well.

        Data of protocol Simple that the network writes to a GPU before Hopper is flushed by a read over the network
        (``ncclTopoNeedFlush``), which NCCL's tuner counts as the fabric's latency once more.
        """
        if not self.several:
            return 0.0
        named = "tree" if self.shape.local == 1 else algorithm
        flushes = protocol == SIMPLE and self.index <= tables.AMPERE
        step = tables.STEP_LATENCY["network"][named][protocol] + self.fabric.step * (2.0 if flushes else 1.0)
        return max(step, self.shape.outside_latency)

    def _chain_fill(self) -> float:
        """Seconds to fill a ring, or a tree, whose ranks within a domain form a chain."""
        return self.constants.fill_chain * self.shape.local / 8 + self._network_fill() * max(1.0, self.levels)

    def _network_fill(self) -> float:
        """Seconds to fill the pipeline; none where all latency hides behind the bytes."""
        if not self.several:
            return 0.0
        waiting = self.constants.fill_network + self.constants.fill_step * self.fabric.step
        return (1.0 - self.fabric.overlap) * waiting

    def _ll_cap(self, share: float) -> float:
        """Seconds a byte takes at least in protocol LL over a ring."""
        most = tables.ll_bandwidth(self.index, self.shape.domains, self.shape.cpu)
        return share / (most * (self.constants.ll_ring if self.several else 1.0))

    def _sides(self, inside: float, outside: float, near: float, far: float) -> _Sides:
        """From the bytes on a rank's links and on all of a domain's, and the share of their bandwidth achieved."""
        shape = self.shape
        within, between = inside / shape.inside_bandwidth, outside / shape.ring_network if self.several else 0.0
        narrowest = shape.outside.bandwidth / shape.network if shape.outside else 0.0
        return _Sides(within / near, between / far, within, between, inside, outside * narrowest)


def plain_curve(
    algorithm: str, protocol: str | None, launch: float, load: Load, bare: Load, shape: ClusterShape
) -> Curve:
    """A straight line: the terms of a schedule, and the part of them that is the bare links'."""
    out = load.outside > load.inside
    link: Link | None = shape.outside if out else shape.inside
    busy, idle = (bare.outside, bare.inside) if out else (bare.inside, bare.outside)
    return Curve(
        algorithm,
        protocol,
        launch,
        load.latency,
        load.per_byte,
        busy if bare.together else bare.per_byte,
        "inter" if out else "intra",
        link,
        busy * (link.bandwidth if link else 0.0),
        beside=0.0 if bare.together else idle,
    )
