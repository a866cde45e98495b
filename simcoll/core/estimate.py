"""What an estimate is, whichever engine made it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The link that is busy for longest: its ends, what it is, bytes/s in its direction, busy seconds per second."""

    source: Hashable
    target: Hashable
    link: str
    bandwidth: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one collective costs.

    ``bytes`` is what nccl-tests means by size, ``ranks`` how many take part. Seconds and bytes/s: the bus bandwidth is
    ``spec.traffic(ranks) * bytes / seconds``, the algorithm bandwidth ``bytes / seconds``. ``terms`` are named seconds
    that add up to ``seconds``.
    """

    op: str
    bytes: int
    ranks: int
    seconds: float
    algorithm: str
    protocol: str | None
    bus_bandwidth: float
    algorithm_bandwidth: float
    bottleneck: Bottleneck | None
    engine: str
    calibrated: bool
    terms: tuple[tuple[str, float], ...]
