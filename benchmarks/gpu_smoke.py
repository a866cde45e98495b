"""The wrapper over NCCL with one rank, and over Gloo with CUDA tensors from two processes that share a GPU.

Each case makes calls that match, synchronously and asynchronously, checks what they computed, makes one that is wrong,
expects an exception in every rank, and shows that the group still works. Prints a table and the versions; exits 1
if a step failed. ``--cpu`` runs the same steps over Gloo without a GPU, to try the program itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

import simcoll

TIMEOUT = timedelta(seconds=60)
LIMIT = 240.0


@dataclass(frozen=True, slots=True)
class Case:
    """A backend and the number of processes that share the first device."""

    backend: str
    ranks: int


CASES = (Case("nccl", 1), Case("gloo", 2))


def synchronous(device: torch.device) -> None:
    """all_reduce and broadcast that return when they are done."""
    ranks, tensor = dist.get_world_size(), torch.full((1000,), float(dist.get_rank() + 1), device=device)
    dist.all_reduce(tensor)
    expect(tensor, ranks * (ranks + 1) / 2)
    dist.broadcast(tensor, src=0)
    expect(tensor, ranks * (ranks + 1) / 2)


def asynchronous(device: torch.device) -> None:
    """A batch of all_reduce launched before the first wait, each on what the stream computes just before it."""
    tensors = [torch.ones(1000, device=device) * factor for factor in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for factor, work in enumerate(works):
        if work is None:
            raise AssertionError("an asynchronous call returned no work")
        work.wait()
        expect(tensors[factor], factor * dist.get_world_size())


def other_stream(device: torch.device) -> None:
    """A call on a stream that is not the default one sees what that stream computed."""
    if device.type != "cuda":
        return
    with torch.cuda.stream(torch.cuda.Stream(device)):
        tensor = torch.zeros(1 << 20, device=device)
        for _ in range(20):
            tensor += 1
        dist.all_reduce(tensor)
        expect(tensor, 20 * dist.get_world_size())


def mismatch(device: torch.device) -> None:
    """One call that is wrong: alone, an output of another size than the group gathers; else, another operator."""
    wrong = _wrong_size if dist.get_world_size() == 1 else _wrong_operator
    try:
        wrong(device)
    except (RuntimeError, ValueError) as error:
        if dist.get_world_size() > 1 and not isinstance(error, simcoll.CollectiveMismatchError):
            raise AssertionError(f"expected a CollectiveMismatchError, got {type(error).__name__}: {error}") from error
        return
    raise AssertionError("a wrong call raised nothing")


def _wrong_size(device: torch.device) -> None:
    dist.all_gather_into_tensor(torch.empty(5, device=device), torch.ones(2, device=device))


def _wrong_operator(device: torch.device) -> None:
    operator = dist.ReduceOp.SUM if dist.get_rank() == 0 else dist.ReduceOp.MAX
    dist.all_reduce(torch.ones(4, device=device), op=operator)


STEPS: dict[str, Callable[[torch.device], None]] = {
    "synchronous": synchronous,
    "asynchronous": asynchronous,
    "other stream": other_stream,
    "mismatch raises": mismatch,
    "works afterwards": synchronous,
}


def expect(tensor: torch.Tensor, value: float) -> None:
    """Raises AssertionError unless every element has the value."""
    wanted = torch.full_like(tensor, value)
    if not torch.equal(tensor, wanted):
        raise AssertionError(f"expected {value} everywhere, got {tensor.flatten()[:4].tolist()}...")


def rank_program(backend: str, device: torch.device) -> None:
    """Run every step on this rank and print what became of each as JSON."""
    simcoll.enable(mode="detail")
    dist.init_process_group(backend, timeout=TIMEOUT)
    results: dict[str, str] = {}
    for name, step in STEPS.items():
        try:
            step(device)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {str(error).splitlines()[0]:.120}"
            break
        results[name] = "ok"
    print(json.dumps(results), flush=True)
    dist.destroy_process_group()


def run_case(case: Case, device: str) -> list[dict[str, str]]:
    """What became of each step on each rank; a rank that printed nothing gets its last line of stderr."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    launcher = {"WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, os.path.abspath(__file__), "--backend", case.backend, "--device", device]
    with tempfile.TemporaryDirectory(prefix="simcoll-gpu-") as folder:
        processes = [
            subprocess.Popen(
                command,
                env=os.environ | launcher | {"RANK": str(rank), "LOCAL_RANK": "0"},
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(case.ranks)
        ]
        return [result(process) for process in processes]


def result(process: subprocess.Popen[str]) -> dict[str, str]:
    """The steps that one rank reports, or how it ended instead."""
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"process": f"still running after {LIMIT:.0f} s"}
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if lines and process.returncode == 0:
        steps: dict[str, str] = json.loads(lines[-1])
        return steps
    last = (errors.strip().splitlines() or ["no output"])[-1]
    return {"process": f"exited {process.returncode}: {last:.160}"}


def versions() -> str:
    """What was tried, on what."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "simcoll": simcoll.__version__}
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        found |= {"cuda": str(torch.version.cuda), "nccl": nccl, "gpu": torch.cuda.get_device_name(0)}
    return ", ".join(f"{name} {value}" for name, value in found.items())


def main(device: str) -> int:
    """Run the cases one after the other and print the table; the exit code says whether every step was right."""
    right = True
    print(f"{'case':<16} {'rank':<5} {'step':<18} result")
    for case in CASES:
        case = Case("gloo", case.ranks) if device == "cpu" else case
        for rank, steps in enumerate(run_case(case, device)):
            for name, outcome in steps.items():
                print(f"{case.backend + ', ' + device:<16} {rank:<5} {name:<18} {outcome}")
            right = right and list(steps.values()) == ["ok"] * len(STEPS)
    print(versions())
    return 0 if right else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="the same steps over Gloo, without a GPU")
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda:0", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend:
        rank_program(options.backend, torch.device(options.device))
    else:
        sys.exit(main("cpu" if options.cpu else "cuda:0"))
