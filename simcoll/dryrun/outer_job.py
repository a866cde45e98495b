"""The launcher's job (torchrun, Slurm, MPI, Ray) whose processes share a dry run.

It is read from the environment, without torch.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.errors import ConfigurationError

_TORCH = ("RANK", "WORLD_SIZE")
_OTHERS = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_FIRST_PORT, _PORTS = 20_000, 10_000
"""Below the ports that Linux gives to clients (32768 and above, ip(7))."""


@dataclass(frozen=True, slots=True)
class OuterJob:
    """One process, ``number`` of ``count``, of those that share a dry run, and the address of their store.

    ``agent`` is True if the launcher has a store there (torchrun has), ``attempt`` is the number of the restart,
    ``beside`` the number of the processes that share this host's cores.
    """

    number: int
    count: int
    host: str
    port: int
    agent: bool = False
    attempt: str = "0"
    beside: int = 1

    @property
    def name(self) -> str:
        """The name of the process in messages."""
        return f"process {self.number} of {self.count} ({socket.gethostname()})"


def outer_job(environ: Mapping[str, str]) -> OuterJob | None:
    """The job that the environment describes; None where this process is alone.

    Raises :class:`ConfigurationError` where it is one of several and the address of their store is not set.
    """
    names = _TORCH if all(name in environ for name in _TORCH) else _launcher_names(environ)
    if names is None or _number(environ, names[1]) <= 1:
        return None
    number, count = (_number(environ, name) for name in names)
    if number >= count:
        raise ConfigurationError(
            f"{names[0]}={number} of {names[1]}={count}: ranks count from 0; unset both to run alone"
        )
    host, port = _store_address(environ, names)
    return OuterJob(
        number,
        count,
        host,
        port,
        agent=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        beside=next((_number(environ, name) for name in _LOCAL_SIZES if name in environ), 1) or 1,
    )


def _launcher_names(environ: Mapping[str, str]) -> tuple[str, str] | None:
    return next((names for names in _OTHERS if all(name in environ for name in names)), None)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdecimal()):
        raise ConfigurationError(f"{name}={text:.40}: expected a number; unset {name} to run alone")
    return int(text)


def _store_address(environ: Mapping[str, str], names: tuple[str, str]) -> tuple[str, int]:
    """The host and port of the store: as set, or the first host of Slurm's step and a port computed from its job."""
    host = environ.get("MASTER_ADDR") or first_host(environ.get("SLURM_STEP_NODELIST", ""))
    if environ.get("MASTER_PORT"):
        port = _number(environ, "MASTER_PORT")
    elif "SLURM_JOB_ID" in environ:
        port = _FIRST_PORT + (_number(environ, "SLURM_JOB_ID") * 7 + _step(environ)) % _PORTS
    else:
        host = ""
        port = 0
    if not host:
        given = ", ".join(f"{name}={environ[name]}" for name in names)
        raise ConfigurationError(
            f"this is one process of several ({given}), and nothing says where they meet: set MASTER_ADDR to the host "
            f"of the first one and MASTER_PORT to a free port there, or unset {' and '.join(names)} to run alone"
        )
    return host, port


def _step(environ: Mapping[str, str]) -> int:
    text = environ.get("SLURM_STEP_ID", "0")
    return int(text) if text.isascii() and text.isdecimal() else 0


def first_host(nodes: str) -> str:
    """The first host of a list in Slurm's form: gpu007 of ``gpu[007-010,12],login1``."""
    found = re.match(r"([^\[\],]*)(?:\[(\w+)[^\]]*\])?([^\[\],]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else ""
