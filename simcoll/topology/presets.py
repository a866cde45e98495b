"""Clusters by name: NVIDIA's servers and racks, PCIe boxes, cloud instances, drawn-out networks; one row each.

A row describes one server; `preset` builds as many as asked for on one ideal network, or on the fat tree that the row
names. Sources are the makers' and providers' own specifications, named in each row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simcoll.errors import TopologyError
from simcoll.topology.clusters import Host, Servers, on_one_network, plan
from simcoll.topology.fat_trees import Layers, on_fat_tree
from simcoll.topology.graph import Topology
from simcoll.topology.hardware import nearest

_RADIX = 64
"""Ports of an NVIDIA Quantum-2 or Spectrum-4 leaf at 400 Gbit/s."""

CUBE_MESH = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Preset:
    """A named cluster: one server (``nic_gbps`` Gbit/s each), the default number of servers, the form of the network.

    ``sockets`` and ``pairs`` as in `simcoll.topology.clusters.Host`; ``domain`` the GPUs that NVLink joins, None for
    the family's own default. ``levels`` 1 is one ideal switch, 2 or 3 a fat tree. ``any_gpu``: the GPU family may be
    chosen.
    """

    name: str
    about: str
    gpu: str
    gpus: int
    nics: int
    nic_gbps: float
    fabric: str
    cpu: str
    source: str
    nodes: int = 1
    domain: int | None = None
    sockets: int = 0
    pairs: tuple[tuple[int, int, int], ...] = ()
    levels: int = 1
    rails: bool = False
    any_gpu: bool = False


def _dgx(name: str, about: str, gpu: str, nic_gbps: float, cpu: str, source: str) -> Preset:
    return Preset(name, about, gpu, 8, 8, nic_gbps, "ib", cpu, source)


def _rack(name: str, about: str, gpu: str, nic_gbps: float, fabric: str, source: str) -> Preset:
    """A rack of 18 trays of four GPUs, all in one NVLink domain."""
    return Preset(name, about, gpu, 4, 4, nic_gbps, fabric, "arm", source, nodes=18)


def _pcie(gpus: int, sockets: int) -> Preset:
    about = f"{gpus} PCIe GPUs without NVLink on {'one socket' if sockets == 1 else 'two sockets'}"
    source = "PCIe generation of the GPU; one 200 Gbit/s NIC for four GPUs"
    name = f"pcie-{gpus}-{sockets}s"
    return Preset(
        name, about, "a100", gpus, gpus // 4, 200, "ib", "amd", source, domain=1, sockets=sockets, any_gpu=True
    )


def _mesh(name: str, about: str, nics: int, nic_gbps: float, fabric: str, source: str) -> Preset:
    return Preset(name, about, "v100", 8, nics, nic_gbps, fabric, "intel", source, domain=1, sockets=2, pairs=CUBE_MESH)


def _drawn_out(name: str, about: str, nodes: int, *, levels: int, rails: bool = False) -> Preset:
    """DGX H100, or others, on a fat tree."""
    dgx = _dgx(name, about, "h100", 400, "intel", "NVIDIA, DGX SuperPOD reference architecture (H100)")
    return replace(dgx, nodes=nodes, levels=levels, rails=rails, any_gpu=True)


_AWS = "AWS, EC2 accelerated computing instances"
_AZURE = "Microsoft, Azure GPU-accelerated VM sizes"
_GCP = "Google Cloud, GPU machine types"
_OCI = "Oracle, Compute shapes (GPU)"
_CORE = "CoreWeave, GPU instances"
_MESH = "NVIDIA, DGX-1 with Tesla V100 system architecture (2017), hybrid cube mesh"

_ROWS = (
    _dgx("dgx-a100", "DGX A100, or HGX A100 with HDR InfiniBand", "a100", 200, "amd", "NVIDIA DGX A100 datasheet"),
    _dgx("dgx-h100", "DGX H100, or HGX H100 with NDR InfiniBand", "h100", 400, "intel", "NVIDIA DGX H100 datasheet"),
    _dgx("dgx-h200", "DGX H200, or HGX H200 with NDR InfiniBand", "h200", 400, "intel", "NVIDIA DGX H200 datasheet"),
    _dgx("dgx-b200", "DGX B200, or HGX B200 with NDR InfiniBand", "b200", 400, "intel", "NVIDIA DGX B200 datasheet"),
    _dgx("dgx-b300", "DGX B300, or HGX B300 with XDR InfiniBand", "b300", 800, "intel", "NVIDIA DGX B300 datasheet"),
    _rack("gb200-nvl72", "GB200 NVL72, a rack of 18 trays", "gb200", 400, "ib", "NVIDIA GB200 NVL72 datasheet"),
    _rack("gb300-nvl72", "GB300 NVL72, a rack of 18 trays", "gb300", 800, "ib", "NVIDIA GB300 NVL72 datasheet"),
    _mesh("dgx1-v100", "DGX-1, eight V100 in a cube mesh", 4, 100, "ib", _MESH),
    Preset("dgx2-v100", "DGX-2, 16 V100 on NVSwitches", "v100", 16, 8, 100, "ib", "intel", "NVIDIA DGX-2 datasheet"),
    *(_pcie(gpus, sockets) for gpus in (4, 8) for sockets in (1, 2)),
    _mesh("aws-p3.16xlarge", "8 V100 in a cube mesh", 1, 25, "efa", f"{_AWS}; {_MESH}"),
    _mesh("aws-p3dn.24xlarge", "8 V100 in a cube mesh", 1, 100, "efa", f"{_AWS}; {_MESH}"),
    Preset("aws-p4d.24xlarge", "8 A100 40 GB", "a100", 8, 4, 100, "efa", "intel", _AWS),
    Preset("aws-p4de.24xlarge", "8 A100 80 GB", "a100", 8, 4, 100, "efa", "intel", _AWS),
    Preset("aws-p5.48xlarge", "8 H100", "h100", 8, 32, 100, "efa", "amd", _AWS),
    Preset("aws-p5e.48xlarge", "8 H200", "h200", 8, 32, 100, "efa", "amd", _AWS),
    Preset("aws-p5en.48xlarge", "8 H200", "h200", 8, 16, 200, "efa", "intel", _AWS),
    Preset("aws-p6-b200.48xlarge", "8 B200", "b200", 8, 8, 400, "efa", "intel", _AWS),
    Preset("aws-p6-b300.48xlarge", "8 B300", "b300", 8, 16, 400, "efa", "intel", _AWS),
    _rack("aws-p6e-gb200", "GB200 NVL72 UltraServer", "gb200", 400, "efa", _AWS),
    Preset("aws-g5.48xlarge", "8 A10G", "a10g", 8, 1, 100, "efa", "amd", _AWS, sockets=2),
    Preset("aws-g6.48xlarge", "8 L4", "l4", 8, 1, 100, "efa", "amd", _AWS, sockets=2),
    Preset("aws-g6e.48xlarge", "8 L40S", "l40s", 8, 4, 100, "efa", "amd", _AWS, sockets=2),
    _mesh("azure-ndv2", "ND40rs v2, 8 V100 in a cube mesh", 1, 100, "ib", f"{_AZURE}; {_MESH}"),
    Preset("azure-ndv4", "ND A100 v4 (40 and 80 GB)", "a100", 8, 8, 200, "ib", "amd", _AZURE),
    Preset("azure-ndv5", "ND H100 v5", "h100", 8, 8, 400, "ib", "intel", _AZURE),
    Preset("azure-nd-h200-v5", "ND H200 v5", "h200", 8, 8, 400, "ib", "intel", _AZURE),
    _rack("azure-nd-gb200-v6", "ND GB200 v6", "gb200", 400, "ib", _AZURE),
    _rack("azure-nd-gb300-v6", "ND GB300 v6", "gb300", 800, "ib", _AZURE),
    Preset(
        "azure-ncv4", "NC96ads A100 v4, 4 A100 PCIe, NVLink in pairs", "a100", 4, 1, 80, "roce", "amd", _AZURE,
        domain=1, sockets=2, pairs=((0, 1, 12), (2, 3, 12)),
    ),
    Preset("gcp-a2-highgpu-8g", "8 A100 40 GB", "a100", 8, 1, 100, "tcpx", "intel", _GCP),
    Preset("gcp-a2-megagpu-16g", "16 A100 40 GB", "a100", 16, 1, 100, "tcpx", "intel", _GCP),
    Preset("gcp-a2-ultragpu-8g", "8 A100 80 GB", "a100", 8, 1, 100, "tcpx", "intel", _GCP),
    Preset("gcp-a3-high", "a3-highgpu-8g, 8 H100, GPUDirect-TCPX", "h100", 8, 4, 200, "tcpx", "intel", _GCP),
    Preset("gcp-a3-mega", "a3-megagpu-8g, 8 H100, GPUDirect-TCPXO", "h100", 8, 8, 200, "tcpxo", "intel", _GCP),
    Preset("gcp-a3-ultra", "a3-ultragpu-8g, 8 H200", "h200", 8, 8, 400, "roce", "intel", _GCP),
    Preset("gcp-a4", "a4-highgpu-8g, 8 B200", "b200", 8, 8, 400, "roce", "intel", _GCP),
    _rack("gcp-a4x", "a4x-highgpu-4g, GB200 NVL72", "gb200", 400, "roce", _GCP),
    Preset("oci-bm.gpu4.8", "8 A100 40 GB", "a100", 8, 16, 100, "roce", "amd", _OCI),
    Preset("oci-bm.gpu.a100-v2.8", "8 A100 80 GB", "a100", 8, 16, 100, "roce", "amd", _OCI),
    Preset("oci-bm.gpu.h100.8", "8 H100", "h100", 8, 16, 200, "roce", "intel", _OCI),
    Preset("oci-bm.gpu.h200.8", "8 H200", "h200", 8, 8, 400, "roce", "intel", _OCI),
    Preset("oci-bm.gpu.b200.8", "8 B200", "b200", 8, 8, 400, "roce", "intel", _OCI),
    _rack("oci-gb200", "BM.GPU.GB200.4, GB200 NVL72", "gb200", 400, "roce", _OCI),
    Preset("coreweave-a100", "8 A100 80 GB", "a100", 8, 8, 200, "ib", "amd", _CORE),
    Preset("coreweave-h100", "8 H100", "h100", 8, 8, 400, "ib", "intel", _CORE),
    Preset("coreweave-h200", "8 H200", "h200", 8, 8, 400, "ib", "intel", _CORE),
    Preset("coreweave-b200", "8 B200", "b200", 8, 8, 400, "ib", "intel", _CORE),
    _rack("coreweave-gb200", "GB200 NVL72", "gb200", 400, "ib", _CORE),
    _drawn_out("fat-tree-2", "a two-level fat tree, non-blocking", 32, levels=2),
    _drawn_out("fat-tree-3", "a three-level fat tree, non-blocking", 512, levels=3),
    _drawn_out("rail-optimised", "two levels, the leaves are rails", 32, levels=2, rails=True),
    _drawn_out("rail-optimised-3", "three levels, the leaves are rails", 512, levels=3, rails=True),
)  # fmt: skip

PRESETS: dict[str, Preset] = {row.name: row for row in _ROWS}


def preset(name: str, *, nodes: int | None = None, gpu: str | None = None) -> Topology:
    """The cluster of that name, in any case, with ``nodes`` servers; raises TopologyError, which names the nearest.

    ``gpu`` chooses the family where the row leaves it open (PCIe boxes, fat trees), with that family's own server.
    """
    row = preset_of(name)
    if gpu is not None and not row.any_gpu and gpu.strip().lower() != row.gpu:
        raise TopologyError(f"the preset {row.name} has {row.gpu} GPUs and no choice of them; leave {gpu!r} out")
    servers = replace(_servers(row, row.nodes if nodes is None else nodes, gpu), name=row.name)
    if row.levels == 1:
        return on_one_network(servers)
    return on_fat_tree(servers, Layers(_RADIX, row.levels, 1.0), rails=row.rails)


def preset_of(name: str) -> Preset:
    """The row of that name, in any case; raises TopologyError, which names the nearest."""
    row = PRESETS.get(name.strip().lower())
    if row is None:
        raise TopologyError(f"unknown preset {name!r}, expected {nearest(name, PRESETS)}; see `simcoll topology list`")
    return row


def _servers(row: Preset, nodes: int, gpu: str | None) -> Servers:
    """A chosen family brings its own CPU and, in a drawn-out network, its own number of GPUs per server."""
    family = row.gpu if gpu is None else gpu
    own = row.gpu == family.strip().lower()
    gpus = row.gpus if own or row.levels == 1 else None
    nics = row.nics if own or row.levels == 1 else None
    servers = plan(family, nodes, gpus, nics, row.nic_gbps, row.fabric, row.domain)
    return replace(servers, host=_host(row, servers.host, own=own))


def _host(row: Preset, host: Host, *, own: bool) -> Host:
    cpu = row.cpu if own else host.cpu
    return replace(host, cpu=cpu, sockets=row.sockets or host.sockets, pairs=row.pairs)
