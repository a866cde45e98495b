"""What PCI identifiers say: GPU families, NIC speeds, kinds of device. Source: the PCI ID repository (pci.ids)."""

from __future__ import annotations

from dataclasses import dataclass

_NVIDIA = 0x10DE
_AWS = 0x1D0F

_SXM = {
    0x1DB1: "v100", 0x1DB5: "v100", 0x1DB8: "v100",
    0x20B0: "a100", 0x20B2: "a100", 0x20BD: "a800", 0x20F3: "a800",
    0x2330: "h100", 0x2324: "h800", 0x2329: "h20", 0x232C: "h20", 0x2335: "h200",
    0x2901: "b200", 0x3182: "b300", 0x2941: "gb200", 0x31C2: "gb300",
}  # fmt: skip
"""GPUs whose boards have NVSwitches (V100: a mesh)."""

_PCIE = {
    0x1DB4: "v100", 0x1DB6: "v100", 0x1EB8: "t4", 0x20B5: "a100", 0x20F1: "a100", 0x20F5: "a800", 0x2236: "a10",
    0x2237: "a10g", 0x26B9: "l40s", 0x27B8: "l4", 0x2684: "rtx4090", 0x2331: "h100", 0x2322: "h800", 0x233B: "h200",
}  # fmt: skip

_NIC_GBPS = {
    (0x15B3, 0x1013): 100, (0x15B3, 0x1017): 100, (0x15B3, 0x1019): 100, (0x15B3, 0x101B): 200, (0x15B3, 0x101D): 100,
    (0x15B3, 0x1021): 400, (0x15B3, 0x1023): 800, (0x15B3, 0xA2D6): 200, (0x15B3, 0xA2DC): 400,
    (0x1D0F, 0xEFA0): 100, (0x1D0F, 0xEFA1): 100, (0x1D0F, 0xEFA2): 200, (0x1D0F, 0xEFA3): 400,
}  # fmt: skip
"""Gbit/s: ConnectX-4 to ConnectX-8, BlueField-2 and -3; AWS's EFA of p4d, p5, p5en and p6 (EC2 documentation)."""

_BY_CAPABILITY = {70: "v100", 75: "t4", 80: "a100", 86: "a10", 89: "l40s", 90: "h100", 100: "b200", 103: "b300"}

KINDS = {"0x03": "gpu", "0x02": "nic", "0x0604": "switch", "0x0680": "nvswitch"}
"""How a class code begins, and what such a device is."""


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU's family, and whether its kind of board is one on which NVLink joins all GPUs."""

    family: str
    linked: bool


def board_of(vendor: int, device: int) -> Board | None:
    """What an NVIDIA device number says of a GPU; None where it is not known."""
    family = _SXM.get(device) or _PCIE.get(device)
    return Board(family, device in _SXM) if vendor == _NVIDIA and family else None


def family_of(capability: int, cpu: str | None) -> str | None:
    """The family that a compute capability most likely means; Blackwell beside an ARM CPU is a Grace Blackwell."""
    family = _BY_CAPABILITY.get(capability)
    return f"g{family}" if family in ("b200", "b300") and cpu == "arm" else family


def nic_bandwidth(vendor: int, device: int) -> float | None:
    """Bytes/s in each direction of a NIC by its identifiers; None where they are not known."""
    gbps = _NIC_GBPS.get((vendor, device))
    return gbps * 1e9 / 8 if gbps else None


def kind_of(class_code: str) -> str | None:
    """``gpu``, ``nic``, ``switch`` or ``nvswitch`` by a class code such as ``0x030200``; None for anything else."""
    return next((kind for start, kind in KINDS.items() if class_code.lower().startswith(start)), None)


def fabric_by(vendor: int, class_code: str) -> str | None:
    """The network that a NIC is made for: AWS's is EFA, InfiniBand and Ethernet by class; None where not known."""
    if vendor == _AWS:
        return "efa"
    return {"0x0207": "ib", "0x0200": "roce"}.get(class_code.lower()[:6])
