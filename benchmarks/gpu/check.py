"""What a check of `gpu_check` is, and the place in which it runs: one rank of a job.

A check raises when something is wrong, raises :class:`SkippedCheck` where it cannot say, and may give figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.settings import Setting

if TYPE_CHECKING:
    import torch

Figures = Mapping[str, str]
"""What was measured, by name, with its unit."""


class SkippedCheck(Exception):  # noqa: N818  # no error: what unittest calls SkipTest
    """A check cannot be made here, and why."""


@dataclass(slots=True)
class Place:
    """One rank of a running job. ``folder`` is where its black boxes go."""

    rank: int
    size: int
    device: torch.device
    backend: str
    mode: str
    folder: Path
    names: dict[str, int] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        """Whether tensors are on a GPU."""
        return self.device.type == "cuda"

    def tensor(self, values: object, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor on the rank's device, made on the host and copied: no kernel runs for it."""
        import torch

        return torch.as_tensor(values, dtype=dtype).clone().to(self.device)

    def same(self, found: torch.Tensor, expected: object, what: str = "") -> None:
        """Raise AssertionError unless a tensor holds the values; compared on the host."""
        import torch

        wanted = torch.as_tensor(expected, dtype=found.dtype)
        got = found.detach().cpu()
        if got.shape != wanted.shape or not torch.allclose(got.double(), wanted.double(), rtol=1e-3, atol=1e-4):
            raise AssertionError(f"{what or 'result'}: expected {_few(wanted)}, got {_few(got)}")

    def settle(self) -> None:
        """Wait for the device, where there is one."""
        import torch

        if self.cuda:
            torch.cuda.synchronize(self.device)


def _few(tensor: torch.Tensor) -> str:
    values = tensor.flatten()[:6].tolist()
    return f"{list(tensor.shape)} {values}{'...' if tensor.numel() > len(values) else ''}"


RankCheck = Callable[[Place], "Figures | None"]
JobCheck = Callable[[Setting, str, Path], "Figures | None"]
"""A check that starts a job of its own in a mode, under ``simcoll run`` say, in a folder."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table.

    ``modes`` are those of simcoll in which it is made, each in processes of its own; ``start`` says how the default
    group is made there (`benchmarks.gpu.rank`). ``ranks`` is how many it needs at least, ``backends`` on which it makes
    sense, ``kernels`` whether it compiles kernels of its own, or maps memory, which a test double does not. ``alone``
    checks get processes that make no other, ``quiet`` ones a machine that does nothing else. ``plain`` says that the
    same program must work without simcoll: where it does not, its failure is none of simcoll's. ``verified`` says that
    all its calls are right, so that ``simcoll verify`` must have nothing to say of its records.
    """

    name: str
    section: str
    run: RankCheck | None
    job: JobCheck | None = None
    modes: tuple[str, ...] = ("record", "check", "detail")
    start: str = "plain"
    ranks: int = 1
    backends: tuple[str, ...] = ("nccl", "gloo")
    cuda: bool = False
    kernels: bool = False
    alone: bool = False
    quiet: bool = False
    plain: bool = True
    verified: bool = True
    seconds: float = 60.0

    def unmet(self, setting: Setting, machine: Machine) -> str | None:
        """Why the check cannot be made on a setting, or None."""
        if self.cuda and not setting.cuda:
            return "needs CUDA tensors"
        if setting.backend not in self.backends:
            return f"only on {' or '.join(self.backends)}"
        if setting.ranks < self.ranks:
            return f"needs {self.ranks} ranks"
        if self.kernels and setting.cuda and "TEST DOUBLE" in machine.versions:
            return "the test double has no compiler and maps no memory"
        return None


CHECKS: list[Check] = []
"""Every row, in the order in which modules were imported."""

AnyCheck = TypeVar("AnyCheck", bound=Callable[..., "Figures | None"])


def check(section: str, name: str, **how: object) -> Callable[[AnyCheck], AnyCheck]:
    """Add a function that runs in every rank to the table; ``how`` are the fields of :class:`Check`."""

    def add(function: AnyCheck) -> AnyCheck:
        CHECKS.append(Check(name, section, function, **how))  # type: ignore[arg-type]  # the dataclass's own fields
        return function

    return add


def launched(section: str, name: str, **how: object) -> Callable[[AnyCheck], AnyCheck]:
    """Add a function that starts a job of its own to the table."""

    def add(function: AnyCheck) -> AnyCheck:
        made = Check(name, section, None, function, **how)  # type: ignore[arg-type]  # the dataclass's own fields
        CHECKS.append(made)
        return function

    return add
