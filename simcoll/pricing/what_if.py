"""What-if options as they are typed: a straggling rank, a slow link, the compute of a step; another number of ranks.

The same job is priced on another number of ranks where its groups allow it. The rule: there is a block of B consecutive
ranks such that every group either stands inside one block (tensor, pipeline, expert parallel; messages always do), or
takes the same places of every block (data parallel, and the world). Blocks are then replicas. With more ranks there are
more replicas, which do what the recorded ones do, in turn; groups across replicas have more members; every collective
keeps its size as nccl-tests counts it: the gradients that an all_reduce adds up and the parameters that an all_gather
puts together stay what they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group
from simcoll.errors import PricingError
from simcoll.pricing import compute
from simcoll.pricing.compute import Straggler
from simcoll.pricing.job import Collectives, RecordedJob, Stream
from simcoll.pricing.rank_program import WAIT, Program
from simcoll.topology.graph import MAX_GPUS
from simcoll.topology.hardware import nearest

_RANK = re.compile(r"\d{1,7}", re.ASCII)
_MOST = 1e9


@dataclass(frozen=True, slots=True)
class SlowLink:
    """The link between two nodes of the topology, or all links of one node or host, ``factor`` times as slow."""

    nodes: tuple[str, ...]
    factor: float


def parse_straggler(text: str) -> Straggler:
    """``3:1.5`` (half as long again) or ``3:+0.02`` (20 ms more in each step); raises PricingError."""
    rank, colon, much = text.partition(":")
    longer = much.startswith("+")
    value = _number(much.removeprefix("+"))
    if not colon or _RANK.fullmatch(rank) is None or value is None:
        raise PricingError(f"--straggler {text!r:.60}: expected RANK:FACTOR or RANK:+SECONDS, such as 3:1.5 or 3:+0.02")
    return Straggler(int(rank), seconds=value) if longer else Straggler(int(rank), factor=value)


def parse_slow_link(text: str) -> SlowLink:
    """``A,B,2`` (the link between two nodes at half its bandwidth), ``A,2`` (all links of one); raises PricingError."""
    *nodes, factor = text.split(",")
    value = _number(factor)
    if not 1 <= len(nodes) <= 2 or not all(nodes) or not value:
        raise PricingError(f"--slow-link {text!r:.80}: expected NODE,NODE,FACTOR or NODE,FACTOR with FACTOR above 0")
    return SlowLink(tuple(node.strip() for node in nodes), value)


def parse_compute(text: str) -> Callable[..., Any]:
    """``none``, or seconds of a step; raises PricingError."""
    if text == "none":
        return compute.none
    value = _number(text)
    if value is None:
        raise PricingError(f"--compute {text!r:.40}: expected measured, none, or the seconds of a step such as 0.25")
    return compute.per_step(value)


def step_seconds(flops: str, peak: str | None, mfu: str) -> float:
    """Seconds that a rank takes over so many floating-point operations; raises PricingError.

    ``peak`` is the GPU's, in operations/s; ``mfu`` the share of it that the program gets (model FLOPs utilisation).
    """
    work, rate, share = _number(flops), parse_peak(peak), parse_share(mfu)
    if work is None:
        raise PricingError(f"--flops {flops!r:.40}: expected the operations of a rank in a step, such as 2.5e15")
    if rate is None:
        raise PricingError("--gpu-peak: expected the GPU's operations/s, such as 989e12; it goes with --flops")
    return work / (rate * share)


def parse_peak(text: str | None) -> float | None:
    """Operations/s, None where nothing is said; raises PricingError."""
    rate = _number(text or "")
    if text is not None and not rate:
        raise PricingError(f"--gpu-peak {text!r:.40}: expected the GPU's operations/s, such as 989e12")
    return rate


def parse_share(text: str) -> float:
    """A share of a GPU's peak; raises PricingError."""
    share = _number(text)
    if not share or share > 1:
        raise PricingError(f"--mfu {text!r:.40}: expected a share of the peak, above 0 and at most 1")
    return share


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def slowed(topology: nx.DiGraph[Any], links: Sequence[SlowLink]) -> nx.DiGraph[Any]:
    """A copy of a topology with slower links; raises PricingError for a link that it does not have."""
    if not links:
        return topology
    copy = topology.copy()
    for link in links:
        for one, other in _edges(copy, link):
            copy.edges[one, other]["bandwidth"] /= link.factor
    copy.graph["name"] = f"{topology.graph.get('name', 'topology')}, slow link"
    return copy


def _edges(graph: nx.DiGraph[Any], link: SlowLink) -> list[tuple[Hashable, Hashable]]:
    if len(link.nodes) == 2:
        ends = [_named(graph, name) for name in link.nodes]
        found = [edge for edge in (tuple(ends), tuple(reversed(ends))) if graph.has_edge(*edge)]
        if not found:
            beside = sorted(str(node) for node in graph.successors(ends[0]))[:6]
            raise PricingError(
                f"--slow-link: {link.nodes[0]} and {link.nodes[1]} are not joined; {link.nodes[0]} is joined to "
                f"{', '.join(beside) or 'nothing'}"
            )
        return [(one, other) for one, other in found]
    nodes = _of_host(graph, link.nodes[0]) or {_named(graph, link.nodes[0])}
    return [(one, other) for one, other in graph.edges if one in nodes or other in nodes]


def _of_host(graph: nx.DiGraph[Any], name: str) -> set[Hashable]:
    """The nodes of a server by their names (``host3/nic0``), or the GPUs whose attribute ``host`` says so."""
    gpus = {node for node, host in graph.nodes(data="host") if host is not None and str(host) == name}
    named = {node for node in graph if str(node).startswith(f"{name}/")}
    return named or gpus


def _named(graph: nx.DiGraph[Any], name: str) -> Hashable:
    names: dict[str, Hashable] = {str(node): node for node in graph}
    if name not in names:
        raise PricingError(f"--slow-link: the topology has no node {name!r:.60}, expected {nearest(name, names)}")
    return names[name]


Places = npt.NDArray[np.int64]


def scaled(job: RecordedJob, size: int) -> RecordedJob:
    """The job on ``size`` ranks; raises PricingError where its groups cannot be scaled to that."""
    if size == job.world_size:
        return job
    if not 1 <= size <= MAX_GPUS:
        raise PricingError(f"--world-size {size}: expected 1 to {MAX_GPUS:,} ranks")
    if job.ranks != tuple(range(job.world_size)):
        missing = job.world_size - len(job.ranks)
        raise PricingError(
            f"--world-size {size}: {missing:,} of {job.world_size:,} ranks left no records to scale from"
        )
    block = _block(job)
    if block is None:
        raise PricingError(
            f"--world-size {size}: the job's groups cannot be scaled: no block of consecutive ranks repeats itself, "
            "with each group inside a block or at the same places of all blocks; price it on its own size"
        )
    if size % block:
        raise PricingError(
            f"--world-size {size}: the job repeats itself every {block} ranks; expected a multiple of {block}"
        )
    return _Scaling(job, block, size).job()


def _block(job: RecordedJob) -> int | None:
    """The smallest block; None where only the whole job is one."""
    world = job.world_size
    sets = {stream.ranks for stream in job.streams}
    for block in range(1, world // 2 + 1):
        if world % block == 0 and all(_is_inside(ranks, block) or _places(ranks, block, world) for ranks in sets):
            return block
    return None


def _is_inside(ranks: Sequence[int], block: int) -> bool:
    return min(ranks) // block == max(ranks) // block


def _places(ranks: Sequence[int], block: int, world: int) -> tuple[int, ...] | None:
    """The places that a group takes in every block; None where it does not take the same ones in all."""
    places = sorted({rank % block for rank in ranks})
    everywhere = len(ranks) == len(places) * (world // block)
    return tuple(places) if everywhere and len(set(ranks)) == len(ranks) else None


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """A stream as it was recorded: its first collective, how many it has, the places in a block or None if inside."""

    stream: Stream
    first: int
    count: int
    places: tuple[int, ...] | None


class _Scaling:
    """Copies of streams, collectives and programs for every block of the new world."""

    def __init__(self, job: RecordedJob, block: int, size: int) -> None:
        self._job, self._block, self._size = job, block, size
        self._recorded = job.world_size // block
        counts = np.bincount(job.collectives.stream, minlength=len(job.streams))
        firsts = np.concatenate([[0], np.cumsum(counts)])
        self._sources = [
            _Source(stream, int(first), int(count), _spanning(stream.ranks, block, job.world_size))
            for stream, first, count in zip(job.streams, firsts, counts, strict=False)
        ]
        self._streams: list[Stream] = []
        self._taken: list[npt.NDArray[np.int64]] = []
        self._count = 0

    def job(self) -> RecordedJob:
        """The job of the new size."""
        blocks = self._size // self._block
        spanning = {number: self._spanning(one) for number, one in enumerate(self._sources) if one.places is not None}
        shifts = [self._inside(block, spanning) for block in range(blocks)]
        columns = [self._source_rank(rank) for rank in range(self._size)]
        programs = tuple(
            self._program(self._job.programs[column], shifts[rank // self._block])
            for rank, column in enumerate(columns)
        )
        return replace(
            self._job,
            ranks=tuple(range(self._size)),
            world_size=self._size,
            streams=tuple(self._streams),
            collectives=self._collectives(programs),
            programs=programs,
            steps=tuple(self._job.steps[column] for column in columns),
        )

    def _source_rank(self, rank: int) -> int:
        return rank % self._block + self._block * (rank // self._block % self._recorded)

    def _spanning(self, one: _Source) -> int:
        """A group across all blocks, once; gives by how much its collectives' numbers change."""
        assert one.places is not None
        ranks = self._everywhere(one.places)
        return self._copy(one, ranks, ranks)

    def _everywhere(self, places: Sequence[int]) -> tuple[int, ...]:
        blocks = range(self._size // self._block)
        return tuple(place + self._block * block for block in blocks for place in places)

    def _inside(self, block: int, spanning: dict[int, int]) -> Places:
        """The streams of one block; gives by how much the numbers of each stream's collectives change there."""
        source = block % self._recorded
        shift = np.zeros(len(self._sources), np.int64)
        for number, one in enumerate(self._sources):
            if one.places is not None:
                shift[number] = spanning[number]
            elif min(one.stream.ranks) // self._block == source:
                moved = self._block * (block - source)
                ranks = tuple(rank + moved for rank in one.stream.ranks)
                # Two ranks may send each other messages in a group that stands in all blocks.
                group = one.stream.group.ranks
                places = _spanning(group, self._block, self._job.world_size)
                members = tuple(rank + moved for rank in group) if places is None else self._everywhere(places)
                shift[number] = self._copy(one, ranks, members)
        return shift

    def _copy(self, one: _Source, ranks: tuple[int, ...], members: tuple[int, ...]) -> int:
        group = Group(one.stream.group.name, one.stream.group.description, members)
        self._streams.append(replace(one.stream, group=group, ranks=ranks, members=np.array(ranks, np.int32)))
        self._taken.append(np.arange(one.first, one.first + one.count))
        self._count += one.count
        return self._count - one.count - one.first

    def _program(self, program: Program, shift: Places) -> Program:
        stream = self._job.collectives.stream[program.instance]
        return replace(program, instance=(program.instance + shift[stream]).astype(np.int32))

    def _collectives(self, programs: Sequence[Program]) -> Collectives:
        old = self._job.collectives
        taken = np.concatenate([np.zeros(0, np.int64), *self._taken])
        came = np.zeros(len(taken), np.int64)
        for program in programs:
            np.add.at(came, program.instance[program.kind != WAIT], 1)
        numbers = np.repeat(np.arange(len(self._streams), dtype=np.int32), [len(one) for one in self._taken])
        return Collectives(
            numbers, old.sequence[taken], old.op[taken], old.bytes[taken], came.astype(np.int32), old.ops
        )


def _spanning(ranks: Sequence[int], block: int, world: int) -> tuple[int, ...] | None:
    return None if _is_inside(ranks, block) else _places(ranks, block, world)
