"""What NVIDIA's Xid catalogue says of an Xid, as far as it tells a fault of the machine from one of the program.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), the column "Resolution
Bucket (Immediate Action)" for Ampere and newer GPUs, as of October 2025. An Xid of the classes IGNORE and
CONTACT_SUPPORT is no evidence, nor is 45, which follows from others. Neither is one without a class there.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final


class XidClass(Enum):
    """Who should act on an Xid; the value is the catalogue's action in words.

    ``link``: the catalogue's workflows for NVLink decide by the severity in the line, where there is one.
    """

    MACHINE = "reset the GPU, restart or check the machine"
    CONTAINED = "a contained memory error; restart the application"
    LINK = "an error of NVLink"
    WORK = "restart the application, and check it"


_MACHINE: Final = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    64: "memory remapping failure",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    155: "NVLink: error defined by software",
    156: "resource retirement",
    158: "fatal timeout",
}
_LINK: Final = {
    74: "NVLink error",
    144: "NVLink: SAW error",
    145: "NVLink: RLW error",
    146: "NVLink: TLW error",
    147: "NVLink: TREX error",
    148: "NVLink: NVLPW_CTRL error",
    149: "NVLink: NETIR error",
    150: "NVLink: MSE error",
}
_WORK: Final = {
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception",
    25: "invalid or illegal push buffer stream",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    69: "graphics engine class error",
    80: "corrupted data sent to GPU",
}

XIDS: Final = MappingProxyType(
    {number: (XidClass.MACHINE, name) for number, name in _MACHINE.items()}
    | {number: (XidClass.LINK, name) for number, name in _LINK.items()}
    | {number: (XidClass.WORK, name) for number, name in _WORK.items()}
    | {94: (XidClass.CONTAINED, "contained memory error")}
)
"""By number: the class, and what happened."""
