"""The speed of a GPU at each class of work: the makers' peaks times the shares that measured training runs reach.

The shares were fitted on published step times (``efficiency.json``; `benchmarks/fit_plan.py` makes it again and states
the rows and the cross-validated error). A GPU that no row measures gets the middle of those that rows measure.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from simcoll.errors import PricingError
from simcoll.plan.work import Work
from simcoll.pricing.roofline import PEAKS, RooflineRates
from simcoll.topology.hardware import nearest

_FP4 = {"b200": 9000e12, "gb200": 10000e12, "b300": 13500e12, "gb300": 15000e12}
"""FLOPs/s of dense products of 4-bit floats: NVIDIA DGX B200 and B300, GB200 NVL72 and GB300 NVL72 datasheets."""

_GENERATION = {"h200": "h100", "h800": "h100", "gb200": "b200", "gb300": "b300", "a800": "a100"}
"""GPUs with the cores of another one, whose shares they have."""

_RACKS = ("gb200", "gb300")
_TORCH = {"bf16": "bfloat16"} | dict.fromkeys(("fp8", "fp8-rowwise", "mxfp8"), "float8_e4m3fn")
_BYTES = {"bf16": 2.0, "fp8": 1.3, "fp8-rowwise": 1.3, "mxfp8": 1.3, "nvfp4": 1.0}
"""Bytes that a product moves for an element: what comes out is 16 bits wide, what goes in as wide as the dtype."""

Shares = Mapping[str, float]


@functools.cache
def fitted_shares() -> Shares:
    """The shares of ``efficiency.json``, by name."""
    document = json.loads(files("simcoll.plan").joinpath("efficiency.json").read_text("utf-8"))
    return {name: float(value) for name, value in document["shares"].items()}


@dataclass(frozen=True, slots=True)
class Framework:
    """The training program: its name, and the year and month of its release (empty: the newest that rows measure)."""

    name: str
    release: str = ""


FRAMEWORKS = ("torchtitan", "megatron", "nemo", "llm-foundry")
USUAL = Framework("torchtitan")
"""Where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """The seconds of one pass of all blocks over a micro-batch, by class of work."""

    matmul: float
    attention: float
    experts: float
    memory: float
    launches: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.matmul + self.attention + self.experts + self.memory + self.launches

    def times(self, factor: float) -> Seconds:
        """So many times each."""
        return Seconds(*(factor * getattr(self, name) for name in self.__slots__))

    def plus(self, other: Seconds) -> Seconds:
        """Both, class by class."""
        return Seconds(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


def reached(gpu: str) -> RooflineRates:
    """The rates that measured steps reach on a GPU, for operators that a dry run counts: FLOPs/s by dtype, bytes/s.

    torch counts all scores of attention, of which causal kernels compute half. Raises PricingError as `Rates` does.
    """
    plain, eight = (Rates(gpu, dtype, Framework("torchtitan")) for dtype in ("bf16", "fp8"))
    wide, narrow = plain.half / plain.peak, eight.matmul / PEAKS[gpu.lower()].flops[_TORCH["fp8"]]
    peaks = PEAKS[gpu.lower()].flops
    flops = {dtype: peak * (narrow if dtype.startswith("float8") else wide) for dtype, peak in peaks.items()}
    for dtype in ("bfloat16", "float16"):
        flops[f"{dtype} attention"] = plain.attention
        flops[f"{dtype} causal attention"] = 2 * plain.attention
    shares = plain.share("stragglers"), plain.share("contention")
    return RooflineRates(flops, plain.memory, True, *shares)


class Rates:
    """The rates of one GPU in one framework, for products of one dtype, at a share of its usual clock.

    Raises PricingError for a GPU whose peak is not known.
    """

    def __init__(
        self, gpu: str, dtype: str, framework: Framework, shares: Shares | None = None, clock: float = 1.0
    ) -> None:
        self._shares = fitted_shares() if shares is None else shares
        peak = PEAKS.get(gpu.lower())
        if peak is None:
            raise PricingError(f"GPU {gpu!r:.40}: its peak is not known, expected {nearest(gpu, PEAKS)}")
        self._generation = _GENERATION.get(gpu.lower(), gpu.lower())
        half = peak.flops["bfloat16"]
        full = _FP4.get(gpu.lower(), peak.flops["float8_e4m3fn"]) if dtype == "nvfp4" else peak.flops[_TORCH[dtype]]
        self.peak = half
        """FLOPs/s of products of 16 bits, against which utilisation is counted."""
        self._dtype, self._framework = dtype, framework
        half, full = half * clock, full * clock
        self.matmul = full * self._of(f"matmul.{dtype}")
        self.half = half * self._of("matmul.bf16")
        old = self._generation == "h100" and framework.name == "llm-foundry"
        self.attention = half * self._of("attention") * (self._shares["attention.flash2_on_hopper"] if old else 1.0)
        self.experts = (self.matmul if dtype != "bf16" else self.half) * self._of("experts")
        self.memory = peak.memory * self._of("memory")
        self._bytes = _BYTES[dtype]
        self._rack = gpu.lower() in _RACKS
        self.recomputes_half = framework.name == "torchtitan"
        """Whether selective recomputation is of every second product, and not of attention alone."""

    def share(self, name: str) -> float:
        """One of the shares that depend on no GPU."""
        return self._shares[name]

    def of_framework(self, name: str) -> float:
        """One of the shares of the framework."""
        return self._shares[f"{name}.{self._framework.name}"]

    def forward(self, work: Work) -> Seconds:
        """A forward pass of all blocks."""
        return self._pass(work, 1.0, 1.0, 1.0)

    def backward(self, work: Work) -> Seconds:
        """The backward pass, without what is recomputed."""
        return self._pass(work, 2.0, 2.5, 1.5)

    def frozen_backward(self, work: Work) -> Seconds:
        """The backward pass of weights that are not trained, beside adapters: products for the inputs' gradients."""
        whole = self._pass(work, 1.0, 2.5, 1.5)
        return Seconds(1.03 * whole.matmul, whole.attention, whole.experts, 2.0 * whole.memory, whole.launches)

    def head(self, work: Work) -> float:
        """Forward and backward pass of the output head and its loss, in 16 bits, with logits of 32."""
        return 3.0 * work.head / self.half + 4.0 * work.logits * self._shares["logits"] / self.memory

    def optimizer(self, parameters: float) -> float:
        """An optimizer step over so many parameters on this rank: Adam reads and writes some 30 bytes of each."""
        return 30.0 * parameters * self._shares["optimizer"] / self.memory

    def _pass(self, work: Work, products: float, attention: float, launches: float) -> Seconds:
        release = self._release("megatron") if work.moe_blocks else 1.0
        moved = work.moved * self.of_framework("moved") * (1.0 if self._dtype == "bf16" else self._shares["quantised"])
        memory = products * 2.0 * (moved + work.scanned * self._shares["scanned"]) / self.memory
        experts = work.experts / self.experts + work.experts_moved * self._bytes / self.memory
        experts += 2.0 * work.permuted * self._shares["permuted"] / self.memory
        routing = self._shares["routing"] * (1.0 if self._rack else self._shares["routing.server"]) * release
        return Seconds(
            products * (work.matmul / self.matmul + work.matmul_moved * self._bytes / self.memory),
            attention * work.attention / self.attention,
            products * experts * release,
            memory,
            launches * (self.of_framework("launch") * work.blocks + routing * work.moe_blocks),
        ).times(self._release("nemo"))

    def _release(self, name: str) -> float:
        """The factor by which a release of a framework takes longer than its other ones; of Megatron its experts."""
        if self._framework.name != name:
            return 1.0
        known = sorted(key.partition(f"{name}.")[2] for key in self._shares if key.startswith(f"{name}."))
        fitting = [key for key in known if key <= self._framework.release]
        chosen = (fitting or known)[-1] if fitting or not self._framework.release else known[0]
        return self._shares[f"{name}.{chosen}"]

    def _of(self, name: str) -> float:
        """A share of this generation, or the middle of all generations'."""
        own = self._shares.get(f"{name}.{self._generation}")
        if own is not None:
            return own
        kind = name.partition(".")[0]
        alike = [value for key, value in self._shares.items() if key.startswith(f"{name}.")]
        alike = alike or [value for key, value in self._shares.items() if key.startswith(f"{kind}.")]
        return statistics.median(alike)
