"""The roofline: how long a GPU takes over the work that a rank does between its calls.

An operator takes as long as its FLOPs at the share of the peak that is reached, or as its bytes at the memory's
bandwidth, whichever is longer (Williams, Waterman, Patterson: Roofline, CACM 52 (2009) 4). Operators of one dtype
and about the same FLOPs a byte are added up first.

The peaks of each GPU, by dtype, and the bandwidth of its memory are figures of the makers' data sheets: dense matrix
products (where a sheet states figures with sparsity, half of these), with sums in float32; FLOPs/s and bytes/s. Sheets
of a whole node or rack are divided by its GPUs. Where a sheet has no float64, it is a 64th of float32 (A10, A10G, L4,
L40S: NVIDIA Ampere GA102 and Ada GPU architecture whitepapers) or a 32nd (T4: NVIDIA Turing GPU architecture
whitepaper). Volta and Turing have no bfloat16 in their tensor cores: it runs as float32 there (NVIDIA CUDA C++
Programming Guide, compute capabilities). Memory of B200 and B300 is what the DGX sheets say, 64 TB/s of eight.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_T = 1e12


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOPs/s by dtype as torch spells it, and ``tf32``; bytes/s of the memory; where the figures are from."""

    flops: Mapping[str, float]
    memory: float
    source: str


def _peak(
    source: str,
    memory: float,
    double: float,
    single: float,
    tf32: float,
    half: float,
    eight: float = 0,
    *,
    has_bfloat16: bool = True,
) -> Peak:
    """From tera-FLOPs/s and TB/s; without 8-bit products these run as 16-bit ones."""
    named = {"float64": double, "float32": single, "tf32": tf32, "float16": half}
    named["bfloat16"] = half if has_bfloat16 else single
    named |= dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), eight or half)
    return Peak({name: value * _T for name, value in named.items()}, memory * _T, source)


_HOPPER = 67.0, 67.0, 494.7, 989.4, 1978.9

PEAKS: Mapping[str, Peak] = {
    "v100": _peak("NVIDIA V100 datasheet (SXM2)", 0.9, 7.8, 15.7, 15.7, 125.0, has_bfloat16=False),
    "t4": _peak("NVIDIA T4 datasheet", 0.32, 0.25, 8.1, 8.1, 65.0, has_bfloat16=False),
    "a10": _peak("NVIDIA A10 datasheet", 0.6, 0.49, 31.2, 62.5, 125.0),
    "a10g": _peak("NVIDIA A10G datasheet", 0.6, 0.49, 31.5, 35.0, 70.0),
    "a100": _peak("NVIDIA A100 datasheet (SXM, 80 GB)", 2.039, 19.5, 19.5, 156.0, 312.0),
    "a800": _peak("NVIDIA A800 datasheet (SXM, 80 GB)", 2.039, 19.5, 19.5, 156.0, 312.0),
    "l4": _peak("NVIDIA L4 datasheet", 0.3, 0.47, 30.3, 60.0, 121.0, 242.5),
    "l40s": _peak("NVIDIA L40S datasheet", 0.864, 1.43, 91.6, 183.0, 362.0, 733.0),
    "rtx4090": _peak("NVIDIA Ada architecture whitepaper", 1.008, 1.29, 82.6, 82.6, 165.2, 330.3),
    "h100": _peak("NVIDIA H100 datasheet (SXM)", 3.35, *_HOPPER),
    "h800": _peak("NVIDIA H800 datasheet (SXM)", 3.35, 1.0, *_HOPPER[1:]),
    "h20": _peak("NVIDIA H20 datasheet", 4.0, 1.0, 44.0, 74.0, 148.0, 296.0),
    "h200": _peak("NVIDIA H200 datasheet (SXM)", 4.8, *_HOPPER),
    "b200": _peak("NVIDIA HGX and DGX B200 datasheets", 8.0, 37.0, 75.0, 1125.0, 2250.0, 4500.0),
    "b300": _peak("NVIDIA HGX and DGX B300 datasheets", 8.0, 1.25, 75.0, 1125.0, 2250.0, 4500.0),
    "gb200": _peak("NVIDIA GB200 NVL72 datasheet", 8.0, 40.0, 80.0, 1250.0, 2500.0, 5000.0),
    "gb300": _peak("NVIDIA GB300 NVL72 datasheet", 8.0, 1.39, 80.0, 1250.0, 2500.0, 5000.0),
}


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """FLOPs and bytes by dtype and intensity."""

    rows: tuple[tuple[str, int, int, int], ...]

    def plus(self, other: OperatorWork) -> OperatorWork:
        """Both, one after the other."""
        return OperatorWork(self.rows + other.rows) if self.rows else other

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return sum(row[2] for row in self.rows)


NOTHING = OperatorWork(())

_MOST = 1 << 96
"""FLOPs and bytes that a row may state: more is nonsense, and may not fit a float."""


def parse_work(rows: Iterable[Any]) -> OperatorWork:
    """OperatorWork as an event states it; what is none is passed over."""
    return OperatorWork(tuple(tuple(row) for row in rows if _is_row(row)))


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[0], str)
        and all(type(number) is int for number in row[1:])
        and min(row[2:]) >= 0
        and max(row[2:]) < _MOST
    )


@dataclass(frozen=True, slots=True)
class WorkBetween:
    """The work before each operation of a program: which of ``distinct`` it is."""

    which: npt.NDArray[np.int32]
    distinct: tuple[OperatorWork, ...]

    @classmethod
    def of(cls, work: Iterable[OperatorWork]) -> WorkBetween:
        """From the work before each operation."""
        numbers: dict[OperatorWork, int] = {}
        which = [numbers.setdefault(one, len(numbers)) for one in work]
        return cls(np.array(which, np.int32), tuple(numbers))

    def flops(self, chosen: npt.NDArray[np.bool_]) -> int:
        """FLOPs before the operations that are chosen."""
        counts = np.bincount(self.which[chosen], minlength=len(self.distinct)).tolist()
        return sum(count * work.flops for count, work in zip(counts, self.distinct, strict=True))


@dataclass(frozen=True, slots=True)
class RooflineRates:
    """The speed of a GPU: FLOPs/s by dtype that a program reaches, bytes/s of its memory.

    Attention may have a rate of its own (``bfloat16 attention``). With ``adds`` an operator takes the time of its FLOPs
    and that of its bytes, one after the other, as rates that were fitted so have it. ``stragglers`` and ``contention``
    are the shares of `simcoll.pricing.waits`.
    """

    flops: Mapping[str, float]
    memory: float
    adds: bool = False
    stragglers: float = 0.0
    contention: float = 0.0

    def seconds(self, work: OperatorWork) -> float:
        """Returns the seconds that some work takes; a dtype that is not known runs as the slowest one."""
        both: Callable[[float, float], float] = operator.add if self.adds else max
        return sum(
            both(flops / self._rate(dtype) if flops else 0.0, size / self.memory) for dtype, _, flops, size in work.rows
        )

    def _rate(self, dtype: str) -> float:
        found = self.flops.get(dtype) or self.flops.get(dtype.partition(" ")[0])
        return found or min(self.flops.values())

    def gaps(self, between: WorkBetween) -> npt.NDArray[np.float64]:
        """Seconds before each operation."""
        each = np.array([self.seconds(work) for work in between.distinct])
        found: npt.NDArray[np.float64] = each[between.which]
        return found
