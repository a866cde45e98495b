"""Classifies device errors by the text of their exceptions: earlier kernel, memory, hardware or library.

The device's context keeps a CUDA error and raises it at whichever call asks next, which is often a collective: the
error belongs to work that was queued before. The texts are those of CUDA's ``cudaGetErrorString``, of c10's exceptions,
and of ``ncclGetErrorString`` and ``getNcclErrorDetailStr`` (torch/csrc/distributed/c10d/NCCLUtils.cpp).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final


class DeviceError(Enum):
    """The kind of a device error; the value is the text that explains it."""

    EARLIER = (
        "its device failed in work that was queued before that call, which only met the error: "
        "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer names the kernel"
    )
    MEMORY = "its device had no memory left: torch.cuda.memory_summary() and nvidia-smi say who holds it"
    HARDWARE = "its device or a link of it is faulty: the Xid in the kernel's log (dmesg) says what, nvidia-smi -q more"
    OTHER = "the error is CUDA's, not the call's: set CUDA_LAUNCH_BLOCKING=1 to learn where it arises"
    SYSTEM = "a system call of the communication library failed on this host: the end of its text says why"
    LIBRARY = "the communication library failed: run with NCCL_DEBUG=WARN, whose first warning says why"


_KINDS: Final = (
    (
        DeviceError.MEMORY,
        re.compile(
            r"(?:CUDA|HIP|GPU) out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|'out of memory'"
            r"|Cuda failure:? (?:2 )?'?out of memory|(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_ALLOC_FAILED"
        ),
    ),
    (
        DeviceError.HARDWARE,
        re.compile(
            r"uncorrectable (?:ECC|NVLink) error|[Cc]ontained error|hardware stack error|device (?:is )?unavailable"
            r"|GPU is lost|fallen off the bus|cudaErrorECCUncorrectable|cudaErrorNvlinkUncorrectable"
        ),
    ),
    (
        DeviceError.EARLIER,
        re.compile(
            r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction"
            r"|invalid program counter|device-side assert|operation not supported on global/shared address space"
            r"|launch timed out|(?:cudaError)(?:IllegalAddress|MisalignedAddress|LaunchFailure|Assert|LaunchTimeout)"
            r"|(?:CUBLAS|CUDNN)_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR)"
        ),
    ),
    (
        DeviceError.OTHER,
        re.compile(r"CUDA (?:driver )?error|Cuda failure|ncclUnhandledCudaError|unhandled cuda error|HIP error"),
    ),
    (
        DeviceError.SYSTEM,
        re.compile(
            r"(?:unhandled system error|ncclSystemError).*(?:No space left on device|Disk quota exceeded"
            r"|Read-only file system|Cannot allocate memory|Too many open files|Permission denied)",
            re.DOTALL,
        ),
    ),
    (DeviceError.LIBRARY, re.compile(r"ncclInternalError|NCCL error.*internal error", re.DOTALL)),
)


def device_error(kind: str, message: str) -> DeviceError | None:
    """Classifies an exception (the name of its type, its text) as a device error; None where it is none."""
    if kind == "OutOfMemoryError":
        return DeviceError.MEMORY
    return next((one for one, pattern in _KINDS if pattern.search(message)), None)
