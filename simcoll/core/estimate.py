"""The value of an estimate, its bottleneck link, and the overheads that protocols and launches add; none by default.

Every engine gives its estimates in this form.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

from simcoll.core.notebook import html_table
from simcoll.core.units import counted, show_rate, show_seconds, show_size

_NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds to launch a collective; by kind of link (`topology.LINKS`), seconds that a step takes longer where it
    crosses one, and the part of the bandwidth that a protocol gets (1 where none is given).
    """

    launch: float = 0.0
    step: Mapping[str, float] = field(default_factory=lambda: _NONE)
    efficiency: Mapping[str, float] = field(default_factory=lambda: _NONE)


BARE = Overheads()
"""Nothing is added."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The link that is busy for longest: its ends, its kind, bytes/s in its direction, busy seconds per second."""

    source: Hashable
    target: Hashable
    link: str
    bandwidth: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of one collective.

    ``bytes`` is the size as nccl-tests counts it, ``ranks`` the number of ranks. Seconds and bytes/s: the bus bandwidth
    is ``spec.traffic(ranks) * bytes / seconds``, the algorithm bandwidth ``bytes / seconds``. ``terms`` are named
    seconds that add up to ``seconds``.
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

    def as_json(self) -> dict[str, object]:
        """The estimate for programs. A node may be anything that hashes: its name stands for it."""
        link = self.bottleneck
        ends = {} if link is None else {"source": str(link.source), "target": str(link.target)}
        return asdict(self) | {"terms": dict(self.terms), "bottleneck": None if link is None else asdict(link) | ends}

    def _repr_html_(self) -> str:
        """The estimate as a notebook shows it."""
        how = self.algorithm if self.protocol is None else f"{self.algorithm}, {self.protocol}"
        rows = [
            ("time", show_seconds(self.seconds)),
            ("algorithm", how),
            ("bus bandwidth", show_rate(self.bus_bandwidth)),
        ]
        if self.bottleneck is not None:
            rows.append(("bottleneck", bottleneck_text(self.bottleneck)))
        return html_table(f"{self.op} of {show_size(self.bytes)} on {counted(self.ranks, 'rank')}", rows)


def bottleneck_text(link: Bottleneck) -> str:
    """The link, and how busy it is."""
    return f"{link.link} {link.source} -> {link.target}, {link.utilisation:.0%} of {show_rate(link.bandwidth)}"
