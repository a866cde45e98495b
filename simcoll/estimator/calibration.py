"""The constants that NCCL's tables do not give, fitted on measured rows; `benchmarks/fit_estimator.py` writes them.

They are read from ``calibration.json`` beside this module. ``docs/estimator.md`` has the meaning and
the source of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import cast

from simcoll.estimator.nccl_tables import BLACKWELL, HOPPER

GENERATION_NAMES = ("volta", "ampere", "hopper", "blackwell")


@dataclass(frozen=True, slots=True)
class Generation:
    """A GPU generation's constants: seconds of a launch, a factor on LL's and LL128's latencies, NVLS's bus bandwidth.

    ``nvls`` is relative to a GPU's NVLink bandwidth as NCCL plans with it.
    """

    launch: float
    latency: float
    nvls: float


@dataclass(frozen=True, slots=True)
class FabricConstants:
    """A network: seconds that a step across it takes beyond NCCL's table, and once more for the whole collective.

    ``bandwidth`` is the share of the line rate that a tree achieves and ``ring`` the share of that of a ring;
    ``overlap`` is the degree to which latency hides behind the bytes: 0 adds them, 1 takes the root of the sum of their
    squares.
    """

    step: float
    once: float
    bandwidth: float
    ring: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """All of them, in seconds or as factors.

    ``fill`` is the time that a pipeline needs to fill in protocol Simple: in a ring or tree (``chain``) and in NVLS for
    eight GPUs of a domain, for each level of a tree across the network, and for each second of the fabric's own step.
    ``fill_reach`` is the share of that time which a message takes that fills it half; ``fill_tree`` the part of it that
    LL128 over a tree needs. ``ring`` is the share of NVLink that a ring achieves, ``ll128`` that of NCCL's figure that
    LL128 does, ``ll_ring`` that of LL over a ring across the network. ``exchange`` is the share of a tree's bandwidth
    that an exchange of all with all achieves, ``exchange_base`` and ``exchange_peer`` its seconds at all and for each
    peer.
    """

    launch: float
    ring: float
    ll128: float
    ll_ring: float
    fill_chain: float
    fill_nvls: float
    fill_network: float
    fill_step: float
    fill_reach: float
    fill_tree: float
    exchange: float
    exchange_base: float
    exchange_peer: float
    generations: Mapping[str, Generation]
    fabrics: Mapping[str, FabricConstants]

    def generation(self, index: int) -> Generation:
        """The constants of a generation of NCCL's tables."""
        return self.generations[GENERATION_NAMES[index]]

    def fabric(self, name: str | None) -> FabricConstants:
        """The constants of a network; an unknown one is InfiniBand."""
        return self.fabrics.get(name or "ib", self.fabrics["ib"])


def from_json(text: str) -> Calibration:
    """Constants as `benchmarks/fit_estimator.py` writes them."""
    values = cast("dict[str, object]", json.loads(text))
    generations = cast("dict[str, dict[str, float]]", values.pop("generations"))
    fabrics = cast("dict[str, dict[str, float]]", values.pop("fabrics"))
    return Calibration(
        **cast("dict[str, float]", values),
        generations={name: Generation(**row) for name, row in generations.items()},
        fabrics={name: FabricConstants(**row) for name, row in fabrics.items()},
    )


@cache
def calibration() -> Calibration:
    """The constants that come with simcoll."""
    return from_json(files("simcoll.estimator").joinpath("calibration.json").read_text(encoding="utf-8"))


def has_nvls(generation: int) -> bool:
    """True if the NVSwitches of a GPU generation can reduce."""
    return generation in (HOPPER, BLACKWELL)
