"""Prices each collective of a job on a topology: every distinct op, size and set of ranks is estimated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcoll.core.estimate import Estimate
from simcoll.errors import PricingError
from simcoll.estimator.estimate import EstimateError, estimate
from simcoll.estimator.nccl_tables import PROTOCOLS
from simcoll.pricing.job import Floats, RecordedJob
from simcoll.spec.collectives import COLLECTIVES
from simcoll.topology.graph import LINKS, ranks


@dataclass(frozen=True, slots=True)
class EstimateOptions:
    """The arguments of `simcoll.estimate` for collectives; where a row does not support them, NCCL's choice holds."""

    algorithm: str | None = None
    protocol: str | None = None
    engine: str = "closed"
    calibrated: bool = True


PLAIN = EstimateOptions()
"""As NCCL would choose, by the closed form."""


@dataclass(frozen=True, slots=True, eq=False)
class JobPrices:
    """Of each collective: seconds, seconds in which its bottleneck link is busy, which kind of link (-1: none).

    ``estimates`` are the distinct ones, ``which`` says which of them each is; ``substituted`` counts those that are
    not as `EstimateOptions` has it.
    """

    seconds: Floats
    busy: Floats
    link: npt.NDArray[np.int64]
    which: npt.NDArray[np.int64]
    estimates: tuple[Estimate, ...]
    substituted: int = 0


def prices_of(job: RecordedJob, topology: nx.DiGraph[Any], choice: EstimateOptions = PLAIN) -> JobPrices:
    """Price every collective; rank i of the job is rank i of the topology.

    Raises PricingError where the topology has too few ranks, TopologyError where it is none, EstimateError for a
    choice that no collective knows.
    """
    check_room(job.world_size, topology)
    _check(choice)
    found = _Pricing(job, topology, choice)
    which = found.price()
    estimates = tuple(found.estimates)
    seconds = np.array([one.seconds for one in estimates] or [0.0])
    busy = np.array([one.seconds * one.bottleneck.utilisation if one.bottleneck else 0.0 for one in estimates] or [0.0])
    link = np.array([LINKS.index(one.bottleneck.link) if one.bottleneck else -1 for one in estimates] or [-1], np.int64)
    return JobPrices(seconds[which], busy[which], link[which], which, estimates, found.substituted)


def check_room(world_size: int, topology: nx.DiGraph[Any]) -> None:
    """Raises PricingError where a topology has too few ranks for a job."""
    size = len(ranks(topology))
    if size < world_size:
        raise PricingError(
            f"the job has {world_size:,} ranks, {topology.graph.get('name', 'the topology')} has {size:,} GPUs: "
            "give one with a GPU for each rank (--nodes, --gpus-per-node)"
        )


def _check(choice: EstimateOptions) -> None:
    known = {name for spec in COLLECTIVES.values() for name in spec.schedules}
    if choice.algorithm is not None and choice.algorithm not in known:
        raise EstimateError(f"no collective has an algorithm {choice.algorithm!r}, expected {', '.join(sorted(known))}")
    if choice.protocol is not None and choice.protocol not in PROTOCOLS:
        raise EstimateError(f"protocol is {choice.protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    if choice.protocol is not None and not choice.calibrated:
        raise EstimateError(f"protocol is {choice.protocol!r}, but a bare graph has none; leave one of them out")


class _Pricing:
    def __init__(self, job: RecordedJob, topology: nx.DiGraph[Any], choice: EstimateOptions) -> None:
        self._job, self._topology, self._choice = job, topology, choice
        self._known: dict[tuple[tuple[int, ...], str, int], int] = {}
        self.estimates: list[Estimate] = []
        self.substituted = 0

    def price(self) -> npt.NDArray[np.int64]:
        """The number of each collective's estimate."""
        all_of = self._job.collectives
        heads, lengths = _runs(all_of.stream, all_of.op, all_of.bytes)
        sizes, size = np.unique(all_of.bytes[heads], return_inverse=True)
        key = all_of.stream[heads].astype(np.int64) * max(len(all_of.ops), 1) + all_of.op[heads]
        _, first, place = np.unique(key * max(len(sizes), 1) + size, return_index=True, return_inverse=True)
        own = np.array([self._one(int(one)) for one in heads[first]], np.int64)
        return np.repeat(own[place], lengths) if len(own) else np.zeros(0, np.int64)

    def _one(self, number: int) -> int:
        all_of = self._job.collectives
        members = self._job.streams[all_of.stream[number]].ranks
        key = members, all_of.ops[all_of.op[number]], int(all_of.bytes[number])
        if key not in self._known:
            self._known[key] = len(self.estimates)
            self.estimates.append(self._estimate(*key))
        return self._known[key]

    def _estimate(self, members: tuple[int, ...], op: str, size: int) -> Estimate:
        choice = self._choice
        how = {"engine": choice.engine, "calibrated": choice.calibrated, "ranks": members}
        try:
            return estimate(
                op,
                size,
                self._topology,
                algorithm=choice.algorithm,
                protocol=choice.protocol,
                **how,  # type: ignore[arg-type]
            )
        except EstimateError:
            if choice.algorithm is None and choice.protocol is None:
                raise
        self.substituted += 1
        return estimate(op, size, self._topology, **how)  # type: ignore[arg-type]


def _runs(*columns: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each run of equal rows begins, and its length: the messages of a stream are often alike."""
    changes = np.zeros(len(columns[0]), np.bool_)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    heads = np.flatnonzero(changes)
    return heads, np.diff(heads, append=len(changes))
