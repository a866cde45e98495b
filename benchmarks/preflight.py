"""How long `simcoll estimate script.py` takes over a Llama-style 8 B model under FSDP2 on 512 ranks, with fake tensors.

The command runs as a user runs it, in a process of its own: start-up, the dry run of the ranks that it chooses, the
verdict, the price of all ranks. The goal is ten minutes and 8 GB on two cores. Beside it stands what the parameters'
shapes say that a step moves (`benchmarks.fsdp2_volumes`), to the byte. Nothing here is a test: it measures, and says on
what.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks.costs import Cost, cost
from benchmarks.fsdp2_volumes import llama, volumes

_GOAL_SECONDS, _GOAL_MIB = 600.0, 8e9 / (1 << 20)
_GPUS_A_NODE = 8
_MODEL = {"layers": 32, "dim": 4096, "heads": 32, "shared": 8, "hidden": 14336, "vocabulary": 128256}
_SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "llama_fsdp2.py"


def measured(options: argparse.Namespace, folder: str) -> Cost:
    """The command, from its start to its end."""
    simcoll = Path(sys.executable).parent / "simcoll"
    nodes = -(-options.ranks // _GPUS_A_NODE)
    command = [str(simcoll), "estimate", str(_SCRIPT), "--world-size", str(options.ranks), "--gpu", "h100"]
    command += ["--nodes", str(nodes), "--fake-tensors", "--steps", str(options.steps), "--out", folder, "--json"]
    command += ["--", "--size", "8b", "--layers", str(options.layers), "--length", str(options.length)]
    return cost(command, options.cores)


def rows(options: argparse.Namespace, document: dict[str, object]) -> dict[str, tuple[int, int]]:
    """Bytes of a step by op: as the command has them, and as the parameters' shapes say."""
    wanted = volumes(llama(**_MODEL | {"layers": options.layers}), options.ranks)
    scenario = document["scenarios"][0]  # type: ignore[index]
    found = {one["op"]: one["bytes"] for one in scenario["steps"]["volumes"]}
    return {op: (found.get(op, 0), size) for op, size in wanted.items()}


def main() -> None:
    """Measure and print; the exit code is 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="cores that the command may use (default: 2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
        found = measured(options, folder)
    if found.exit_code:
        sys.exit(f"the command ended with {found.exit_code}: {found.output.decode()[-2000:]}")
    compared = rows(options, json.loads(found.output))
    met = found.seconds <= _GOAL_SECONDS and found.peak_mib <= _GOAL_MIB
    print(f"{found.seconds:.0f} s, {found.cpu_seconds:.0f} s of processors, {found.peak_mib:,.0f} MiB at most")
    for op, (bytes_found, wanted) in compared.items():
        print(f"{op}: {bytes_found:,} B a step, {wanted:,} B by the parameters' shapes")
        met = met and bytes_found == wanted
    cores = f"{options.cores} of {os.cpu_count()} cores"
    print(f"python {platform.python_version()}, {platform.machine()}, {cores}")
    sys.exit(0 if met else "a goal is missed: ten minutes, 8 GB, equal bytes")


if __name__ == "__main__":
    main()
