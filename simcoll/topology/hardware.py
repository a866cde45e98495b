"""Facts about GPUs, links and networks, each with its source; SI units, bandwidths in each direction.

Where NCCL states the bandwidth of a link, its figure is taken (2.30.7, ``src/graph/topo.h``): it is the part left for
data, with which NCCL plans its channels. An NVLink of an H100 signals 25 GB/s and carries 20.6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from simcoll.errors import TopologyError

Row = TypeVar("Row")

GIB = float(1 << 30)

# NCCL's SM70_NVLINK_BW to SM100_NVLINK_BW, bytes/s of one link.
_VOLTA_LINK = 20e9
_AMPERE_LINK = 20e9
_HOPPER_LINK = 20.6e9
_BLACKWELL_LINK = 40.1e9

_PCIE_GEN3_X16 = 12e9
"""NCCL's PCI_BW; its later generations are planned with twice as much each."""

_PCIE_GEN3_X16_SIGNALLED = 8e9 * 16 * 128 / 130 / 8
"""PCI Express Base Specification 3.0: 8 GT/s, sixteen lanes, 128b/130b; later generations twice as much each."""

SOCKET_LINK = {"intel": 22e9, "amd": 16e9, "arm": 6e9}
"""Bytes/s between two sockets: NCCL's SRP_QPI_BW (Sapphire Rapids), AMD_BW and ARM_BW."""

NVLINK_LATENCY = 0.3e-6
"""Seconds between a GPU and the next device: half of NCCL's 0.6 us for a step over NVLink (``tuning.cc``, ring, LL)."""

PCIE_LATENCY = 0.25e-6
"""Seconds of one PCIe link: a quarter of NCCL's 1.0 us for a step over PCIe, GPU to switch to CPU to switch to GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The known facts about a GPU family.

    ``nvlink`` is bytes/s of one of its ``nvlinks`` links, ``memory`` bytes. ``nvls``: its NVSwitch adds up what passes
    through it. ``gpus_per_node`` and ``nvlink_domain`` are the defaults of `simcoll.cluster`; ``cpu`` is that of
    NVIDIA's own server, or of the one that the source describes.
    """

    family: str
    nvlinks: int
    nvlink: float
    pcie_generation: int
    memory: float
    nvls: bool
    gpus_per_node: int
    nvlink_domain: int
    cpu: str
    source: str

    @property
    def nvlink_bandwidth(self) -> float:
        """Bytes/s of all its NVLinks together, in each direction."""
        return self.nvlinks * self.nvlink

    def pcie_bandwidth(self, nics: float = 0.0) -> float:
        """Bytes/s of its sixteen PCIe lanes, in each direction, where NICs of ``nics`` bytes/s are to be filled.

        NCCL's figure is a cautious one (48 GB/s for Gen5), and a 400 Gbit/s NIC is sold to be filled over such a link:
        as much as the NICs take is granted, up to what the lanes signal.
        """
        doublings = 2.0 ** (self.pcie_generation - 3)
        return max(pcie_bandwidth(self.pcie_generation), min(nics, _PCIE_GEN3_X16_SIGNALLED * doublings))


@dataclass(frozen=True, slots=True)
class Fabric:
    """A kind of network: seconds from a NIC to its switch, and of each further switch; the source of the figures."""

    name: str
    latency: float
    hop_latency: float
    source: str


def pcie_bandwidth(generation: int, lanes: int = 16) -> float:
    """Bytes/s in each direction of a PCIe link as NCCL plans with it: 12 GB/s for Gen3 x16, then twice as much each."""
    return _PCIE_GEN3_X16 * 2.0 ** (generation - 3) * lanes / 16


def _gpu(
    family: str,
    links: tuple[int, float],
    pcie: int,
    memory: int,
    cpu: str,
    source: str,
    *,
    nvls: bool = False,
    node: int = 8,
    domain: int | None = None,
) -> Gpu:
    """A row; PCIe-only families have a domain of one GPU, the others of the node unless they say more."""
    reach = domain or (node if links[0] else 1)
    return Gpu(family, *links, pcie, memory * GIB, nvls, node, reach, cpu, source)


def _rack(family: str, pcie: int, memory: int, source: str) -> Gpu:
    """A row of a family that comes in trays of four, 72 GPUs in one NVLink domain, with Grace CPUs."""
    links = (18, _BLACKWELL_LINK)
    return _gpu(family, links, pcie, memory, "arm", source, nvls=True, node=4, domain=72)


_NO_LINKS = (0, 0.0)

GPUS: dict[str, Gpu] = {
    gpu.family: gpu
    for gpu in (
        _gpu("v100", (6, _VOLTA_LINK), 3, 32, "intel", "NVIDIA, DGX-1 with Tesla V100 system architecture (2017)"),
        _gpu("t4", _NO_LINKS, 3, 16, "intel", "NVIDIA T4 datasheet"),
        _gpu("a10", _NO_LINKS, 4, 24, "amd", "NVIDIA A10 datasheet"),
        _gpu("a10g", _NO_LINKS, 4, 24, "amd", "AWS, EC2 G5 instances"),
        _gpu("a100", (12, _AMPERE_LINK), 4, 80, "amd", "NVIDIA A100 datasheet; DGX A100 datasheet"),
        _gpu("a800", (8, _AMPERE_LINK), 4, 80, "amd", "NVIDIA A800 datasheet (400 GB/s of NVLink)"),
        _gpu("l4", _NO_LINKS, 4, 24, "amd", "NVIDIA L4 datasheet"),
        _gpu("l40s", _NO_LINKS, 4, 48, "amd", "NVIDIA L40S datasheet"),
        _gpu("rtx4090", _NO_LINKS, 4, 24, "amd", "NVIDIA Ada architecture whitepaper"),
        _gpu("h100", (18, _HOPPER_LINK), 5, 80, "intel", "NVIDIA H100 datasheet; DGX H100 datasheet", nvls=True),
        _gpu("h800", (8, _HOPPER_LINK), 5, 80, "intel", "NVIDIA H800 datasheet (400 GB/s of NVLink)", nvls=True),
        _gpu("h20", (18, _HOPPER_LINK), 5, 96, "intel", "NVIDIA H20 datasheet", nvls=True),
        _gpu("h200", (18, _HOPPER_LINK), 5, 141, "intel", "NVIDIA H200 datasheet; DGX H200 datasheet", nvls=True),
        _gpu("b200", (18, _BLACKWELL_LINK), 5, 180, "intel", "NVIDIA DGX B200 datasheet", nvls=True),
        _gpu("b300", (18, _BLACKWELL_LINK), 6, 288, "intel", "NVIDIA DGX B300 datasheet", nvls=True),
        _rack("gb200", 5, 186, "NVIDIA GB200 NVL72 datasheet"),
        _rack("gb300", 6, 288, "NVIDIA GB300 NVL72 datasheet"),
    )
}

_NCCL_NET = "NCCL 2.30.7, tuning.cc: 2.7 us for a step over the network (ring, LL), less its four PCIe links"
_RDMA = (2.7e-6 - 4 * PCIE_LATENCY) / 2
# A 1 KiB all_reduce takes 69.24 us on two p5.48xlarge over EFA (aws-samples/awsome-distributed-training, nccl-tests
# README) and 29.75 us on two HGX H100 over InfiniBand (NVIDIA/nccl-tests issue 309): so much more in two network steps.
_EFA = _RDMA + (69.24e-6 - 29.75e-6) / 2 / 2
_EFA_SOURCE = "1 KiB all_reduce on two p5.48xlarge beside two HGX H100 over InfiniBand (nccl-tests, see the code)"

FABRICS: dict[str, Fabric] = {
    fabric.name: fabric
    for fabric in (
        Fabric("ib", _RDMA, 0.15e-6, f"{_NCCL_NET}; NVIDIA Quantum-2: below 150 ns from port to port"),
        Fabric("roce", _RDMA, 0.5e-6, f"{_NCCL_NET}; NVIDIA Spectrum-4: about 500 ns from port to port"),
        Fabric("efa", _EFA, 0.5e-6, _EFA_SOURCE),
        Fabric("tcpx", _EFA, 0.5e-6, "no figure was found; that of EFA"),
        Fabric("tcpxo", _EFA, 0.5e-6, "no figure was found; that of EFA"),
    )
}


def gpu_of(family: str) -> Gpu:
    """The facts about a GPU family, by its name in any case; raises TopologyError, which names the nearest."""
    return _looked_up(GPUS, family, "GPU family")


def fabric_of(name: str) -> Fabric:
    """The facts about a network; raises TopologyError for an unknown name."""
    return _looked_up(FABRICS, name, "fabric")


def _looked_up(table: dict[str, Row], name: str, what: str) -> Row:
    row = table.get(str(name).strip().lower())
    if row is None:
        raise TopologyError(f"unknown {what} {name!r}, expected {nearest(str(name), table)}")
    return row


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the expected names for an error: those that resemble the one given, or all of them."""
    known = list(known)
    close = get_close_matches(name.lower(), known, n=4, cutoff=0.5)
    return " or ".join(close) if close else f"one of {', '.join(known)}"
