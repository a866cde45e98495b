"""What `gpu_check` tries things on: how many ranks, over which backend, on how many GPUs; and where that is possible.

A newer NCCL than torch's own can be put under the ranks that share a GPU: ``SIMCOLL_CHECK_NCCL`` names its
``libnccl.so.2``, which is preloaded. Without one, NCCL takes ranks on one GPU for ranks of different hosts where each
has a host's name of its own (``NCCL_HOSTID``): they then talk over sockets. The processes take turns on the GPU, so
that a collective takes milliseconds; it is no measurement of NCCL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.gpu.machine import Machine

SHARED_GPU_NCCL = (2, 30)
"""The first NCCL in which several ranks may share a GPU, if NCCL_MULTI_RANK_GPU_ENABLE says so."""

PRELOADED = "SIMCOLL_CHECK_NCCL"
HOSTS = "SIMCOLL_CHECK_HOSTS"
"""Set where each rank is to take a host's name of its own."""

MOST_GPUS = 4
"""As many ranks as a machine of this program's users surely has cores for."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A backend, its ranks, and how many GPUs they have between them (0: CPU tensors).

    ``environment`` is what the ranks' processes get beside the launcher's variables.
    """

    name: str
    backend: str
    ranks: int
    gpus: int
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        """Whether tensors are on a GPU."""
        return self.gpus > 0

    def device(self, rank: int) -> str:
        """The device of a rank, as torch spells it."""
        return f"cuda:{rank % self.gpus}" if self.cuda else "cpu"


def cpu_settings() -> tuple[Setting, ...]:
    """What tries the program itself where there is no GPU."""
    return (Setting("gloo, 2 ranks, cpu", "gloo", 2, 0),)


def gpu_settings(machine: Machine) -> tuple[Setting, ...]:
    """Every setting that has ever a column; :func:`unavailable` says which of them cannot run here."""
    gpus = max(2, min(machine.gpus, MOST_GPUS))
    return (
        Setting("nccl, 1 rank", "nccl", 1, 1),
        Setting("nccl, 2 ranks on 1 GPU", "nccl", 2, 1, sharing()),
        Setting("nccl, 2 ranks on 1 GPU as if on 2 hosts", "nccl", 2, 1, shared_as_hosts()),
        Setting(f"nccl, {gpus} GPUs", "nccl", gpus, gpus),
        Setting("gloo, 2 ranks on 1 GPU, CUDA tensors", "gloo", 2, 1),
    )


def unavailable(setting: Setting, machine: Machine) -> str | None:
    """Why a setting cannot run on this machine, or None."""
    if not setting.cuda:
        return None
    if machine.gpus == 0:
        return machine.reason
    if setting.gpus > machine.gpus:
        return f"needs {setting.gpus} GPUs, found {machine.gpus}"
    if setting.backend != "nccl":
        return None
    if machine.nccl is None:
        return "this torch is built without NCCL"
    shared = setting.ranks > setting.gpus and HOSTS not in setting.environment
    found = machine.preloaded_nccl or machine.nccl
    if shared and found < SHARED_GPU_NCCL:
        return f"needs NCCL 2.30, found {'.'.join(map(str, found))}: name a newer libnccl.so.2 in {PRELOADED}"
    return None


def shared_as_hosts() -> dict[str, str]:
    """What lets ranks on one GPU pass for those of several hosts, with any NCCL."""
    return {HOSTS: "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def pretend_hosts() -> None:
    """In a rank, before it makes a group: take a host's name of its own where the setting says so."""
    if os.environ.get(HOSTS):
        os.environ["NCCL_HOSTID"] = f"simcoll-{os.environ['RANK']}"


def sharing() -> dict[str, str]:
    """What lets ranks share a GPU, from NCCL 2.30."""
    preloaded = os.environ.get(PRELOADED)
    enabled = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    return enabled | {"LD_PRELOAD": preloaded} if preloaded else enabled
