"""simcoll's estimate of a call beside NCCL's own: `simcoll.time_estimator` and `torch.distributed._time_estimator`.

Both are asked in one program, for each collective and size, and for several calls in one block, of which NCCL prices
the last alone (``ncclGroupSimulateEnd``). NCCL prices communicators that exist, on the machine as it found it: worlds
that are larger than the machine cannot be asked for. What can be had:

* several GPUs: one rank on each, and the measured time beside both estimates;
* one GPU: several ranks on it, from NCCL 2.30, or each as if on a host of its own (`benchmarks.gpu.settings`): NCCL
  then prices ranks that share a GPU, or hosts that are joined by sockets, while simcoll prices the topology that is
  named below the table. The figures say what NCCL's model does with such a world, not which of the two is right;
  nothing is measured, since the processes take turns on the GPU;
* one rank: NCCL copies and prices nothing.

The topology is ``--topology`` (a preset or a file, as everywhere), else NCCL's own dump where NCCL_TOPO_DUMP_FILE names
one, else what ``nvidia-smi topo -m`` says of several GPUs, else the server of this family of GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import simcoll
from benchmarks.gpu.job import ended, start
from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.settings import Setting, gpu_settings, unavailable
from benchmarks.gpu.tables import versions
from simcoll.topology.hardware import GPUS
from simcoll.topology.import_hints import Hints
from simcoll.topology.request import topology_named

SIZES = [4, *(1 << power for power in range(10, 31, 4))]
LIMIT_SECONDS = 400.0
WIDTHS = (15, 6, 14, 11, 9, 13, 12)
HEADINGS = ("op", "calls", "bytes", "simcoll us", "NCCL us", "simcoll/NCCL", "measured us")


def setting_for(machine: Machine) -> tuple[Setting | None, str]:
    """The best that the machine has for it, or None and why."""
    possible = [each for each in gpu_settings(machine) if each.backend == "nccl" and unavailable(each, machine) is None]
    several = sorted((each for each in possible if each.ranks > 1), key=lambda each: -each.gpus)
    if several:
        return several[0], ""
    return None, machine.reason or "one rank alone moves nothing, and NCCL prices nothing for it"


def family_of(name: str) -> str | None:
    """The family of GPUs that a device's name says, such as h200 for ``NVIDIA H200``."""
    words = name.lower().replace("-", " ").split()
    return next((family for family in sorted(GPUS, key=len, reverse=True) if family in words), None)


def topology_file(asked: str | None, setting: Setting, machine: Machine, folder: Path) -> tuple[str, str]:
    """A preset's name or a file with the topology, and what it is; exits where nothing says."""
    dumped = os.environ.get("NCCL_TOPO_DUMP_FILE", "")
    for name, what in ((asked, "--topology"), (dumped if os.path.isfile(dumped) else None, "NCCL_TOPO_DUMP_FILE")):
        if name:
            return name, f"{what} {name}"
    family = family_of(machine.versions.get("GPU", ""))
    if setting.gpus > 1 and (matrix := _matrix(folder)) is not None:
        path = folder / "nvidia-smi.json"
        simcoll.write_topology(path, simcoll.read_topology(matrix, Hints(gpu=family)))
        return str(path), "nvidia-smi topo -m"
    if family is None:
        raise SystemExit(f"time_estimators: no topology for {machine.versions.get('GPU')}: give --topology FILE|PRESET")
    path = folder / "server.json"
    hosts = setting.ranks if "as if" in setting.name else 1
    simcoll.write_topology(path, simcoll.cluster(gpu=family, nodes=hosts, gpus_per_node=setting.ranks // hosts))
    return str(path), f"{hosts} x {setting.ranks // hosts} {family}, as such servers are built"


def _matrix(folder: Path) -> Path | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    said = subprocess.run([tool, "topo", "-m"], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        return None
    path = folder / "topo.txt"
    path.write_text(said.stdout)
    return path


def rows_of(setting: Setting, topology: str, sizes: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Start the ranks; what rank 0 printed. Raises RuntimeError with the ranks' last words where there is nothing."""
    job = folder / "job.json"
    devices = [setting.device(rank) for rank in range(setting.ranks)]
    measured = setting.ranks <= setting.gpus
    told = {"devices": devices, "topology": topology, "sizes": list(sizes), "measured": measured}
    job.write_text(json.dumps(told))
    processes = start(setting, "benchmarks.time_estimator_rank", job, folder)
    ended(processes, LIMIT_SECONDS)
    output = (folder / "rank0.txt").read_text(errors="replace")
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"op"')]
    if not rows or any(process.returncode for process in processes):
        last = [(folder / f"rank{rank}.txt").read_text(errors="replace")[-600:] for rank in range(setting.ranks)]
        raise RuntimeError(f"ranks exited {[process.returncode for process in processes]}: {last}")
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in columns."""
    lines = [_line(HEADINGS)]
    for row in rows:
        theirs, ours = row["nccl_us"], row["simcoll_us"]
        cells = [str(row["calls"]), f"{row['bytes']:,}", f"{ours:,.1f}", "none" if theirs is None else f"{theirs:,.1f}"]
        cells.append(f"{ours / theirs:.2f}" if theirs else "")
        cells.append(f"{row['measured_us']:,.1f}" if "measured_us" in row else "")
        lines.append(_line([row["op"], *cells]))
    return "\n".join([*lines, *sorted({row["why"] for row in rows} - {""})])


def _line(cells: Sequence[str]) -> str:
    first, *others = zip(cells, WIDTHS, strict=True)
    return f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in others).rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask both, print the table; skips with a reason where NCCL cannot be asked."""
    parser = argparse.ArgumentParser(prog="time_estimators", description=__doc__.partition("\n")[0])
    parser.add_argument("--topology", metavar="FILE|PRESET", help="of the machine (default: found out, see the source)")
    parser.add_argument("--sizes", metavar="BYTES", help="comma-separated (default: 4 bytes to 1 GiB)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows, for programs")
    asked = parser.parse_args(arguments)
    machine = this_machine()
    setting, why = setting_for(machine)
    if setting is None:
        print(f"time_estimators: skipped: {why}")
        return 0
    sizes = SIZES if asked.sizes is None else [int(size) for size in asked.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="simcoll-estimators-") as scratch:
        name, what = topology_file(asked.topology, setting, machine, Path(scratch))
        topology_named(name)
        rows = rows_of(setting, name, sizes, Path(scratch))
    print(table(rows))
    print(f"{setting.name}; simcoll's topology: {what}\n{versions(machine)}")
    if asked.json:
        asked.json.write_text(
            json.dumps({"machine": machine.versions, "setting": setting.name, "rows": rows}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
