"""What exceptions tell by their type and text."""

from __future__ import annotations

import errno
import os

import pytest

from simcoll.verifier.causes.exceptions import ERRNOS, told
from simcoll.verifier.findings.causes import Cause, Restart, Strength


def test_the_numbers_are_linux_own() -> None:
    names = {number: said.why.partition(":")[0] for number, said in ERRNOS.items()}
    assert names == {number: errno.errorcode[number] for number in ERRNOS}


@pytest.mark.parametrize("number", sorted(ERRNOS))
def test_pythons_own_text_is_understood(number: int) -> None:
    error = OSError(number, os.strerror(number), "/data/shard-17")
    assert told(type(error).__name__, str(error)) is ERRNOS[number]


def test_a_terminal_that_has_gone_is_no_fault_of_the_host() -> None:
    assert told("OSError", "[Errno 5] Input/output error") is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("MemoryError", ""),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
        ("OSError", "[Errno 12] Cannot allocate memory"),
        ("RuntimeError", "std::bad_alloc"),
    ],
)
def test_no_memory_on_the_host(kind: str, message: str) -> None:
    found = told(kind, message)
    assert found is not None
    assert (found.cause, found.restart) == (Cause.PROGRAM, Restart.NO)


NCCL_SHM = (
    "NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error (see NCCL_DEBUG), NCCL version "
    "2.27\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast "
    "error:\nError while creating shared memory segment /dev/shm/nccl-x (size 9), error: No space left on device (28)"
)


@pytest.mark.parametrize(
    ("message", "cause", "strength", "restart", "why"),
    [
        (NCCL_SHM, Cause.MACHINE, Strength.STRONG, Restart.NO, "/dev/shm"),
        (
            "unable to write to file </torch_1_2>: No space left on device (28)",
            Cause.MACHINE,
            Strength.STRONG,
            Restart.NO,
            "/dev/shm",
        ),
        (
            "[Errno 28] No space left on device: '/ckpt/x.pt'",
            Cause.MACHINE,
            Strength.STRONG,
            Restart.NO,
            "a disk is full",
        ),
        ("upload failed: No space left on device", Cause.MACHINE, Strength.WEAK, Restart.UNKNOWN, "a disk is full"),
        ("connect [10.0.0.3]:5: No route to host", Cause.NETWORK, Strength.WEAK, Restart.UNKNOWN, "no route"),
        (
            "DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are "
            "out of shared memory.",
            Cause.MACHINE,
            Strength.WEAK,
            Restart.UNKNOWN,
            "/dev/shm",
        ),
    ],
)
def test_errors_of_the_system_in_other_texts(
    message: str, cause: Cause, strength: Strength, restart: Restart, why: str
) -> None:
    found = told("RuntimeError", message)
    assert found is not None
    assert (found.cause, found.strength, found.restart) == (cause, strength, restart)
    assert why in found.why


def test_a_mistake_in_the_text() -> None:
    found = told("NameError", "name 'loss' is not defined")
    assert found is not None
    assert (found.cause, found.strength, found.restart) == (Cause.PROGRAM, Strength.STRONG, Restart.NO)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ValueError", "bad record"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'x'"),
        ("KeyError", "1"),
    ],
)
def test_others_tell_nothing(kind: str, message: str) -> None:
    assert told(kind, message) is None
