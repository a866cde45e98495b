"""``simcoll preflight``: whether the ranks' programs agree, before the job runs, with no cluster and no GPU."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.topology_arguments import Commands, add_topology_arguments, is_topology_given, topology_of

if TYPE_CHECKING:
    from simcoll.lone_rank import DryRun
    from simcoll.outlet import Outlet
    from simcoll.preflight import Plan

DRY_RUN_SECONDS = 600.0
"""How long each rank may take, unless said otherwise."""

_GPUS_A_NODE = 8
_MOST_RANKS = 1 << 20


def add_preflight_command(commands: Commands) -> None:
    """Add ``preflight`` to the command line's parser."""
    about = "run a script once for each rank, alone and without a cluster, and verify that the ranks agree"
    parser = commands.add_parser("preflight", help=about, description=f"{about.capitalize()}.")
    parser.add_argument("--world-size", metavar="N", type=int, help="how many ranks (default: the topology's)")
    parser.add_argument(
        "--ranks", metavar="LIST|auto", default="auto", help="which run, such as 0-3,8 (default: auto, all up to 64)"
    )
    add_dry_run_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, and nothing else there")
    add_topology_arguments(parser)
    parser.add_argument("script", metavar="script.py", type=Path)
    parser.add_argument("arguments", metavar="args", nargs=argparse.REMAINDER)


def add_dry_run_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options of a dry run, which ``estimate`` has too."""
    parser.add_argument("--steps", metavar="K", type=int, help="end each rank after K steps of an optimiser")
    parser.add_argument("--fake-tensors", action="store_true", help="tensors without memory, for large models")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="what programs find: GPUs, pretended, or none (cuda)"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="where records, output and report go")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=DRY_RUN_SECONDS, help="for each rank (600)")
    parser.add_argument("--memory", metavar="GIB", type=float, help="address space of each rank (default: no limit)")
    parser.add_argument("--jobs", metavar="N", type=int, help="ranks at a time (default: the cores)")


def run_preflight(options: argparse.Namespace) -> int:
    """Carry out ``simcoll preflight``; the exit code of the contract."""
    from simcoll.errors import SimcollError
    from simcoll.outlet import Outlet
    from simcoll.preconditions import BAD_INPUT, RefusedError, check_script, check_torch, prepare_folder

    outlet = Outlet(json=options.json)
    try:
        size, local = sizes_asked(options)
        ranks = ranks_asked(options, size)
        check_dry_run(options)
        check_script(options.script, compiles=True)
        check_torch()
        folder = prepare_folder(options.out, len(ranks or range(min(size, 64))))
    except RefusedError as error:
        return outlet.refuse(error.code, str(error))
    except (SimcollError, ValueError) as error:
        return outlet.refuse(BAD_INPUT, str(error))
    # Before torch is imported: real GPUs are left alone.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from simcoll.lone_rank import DryRun
    from simcoll.preflight import Plan, cores

    memory = None if options.memory is None else int(options.memory * (1 << 30))
    dry_run = DryRun(
        options.script,
        options.arguments,
        size,
        local,
        folder,
        options.steps,
        options.fake_tensors,
        memory,
        options.device == "cuda",
    )
    return _conclude(dry_run, Plan(ranks, options.timeout, options.jobs or cores()), outlet)


def _conclude(dry_run: DryRun, plan: Plan, outlet: Outlet) -> int:
    from simcoll.preflight import preflight, remove_earlier
    from simcoll.progress import progress_bar
    from simcoll.verifier.postmortem import exit_code
    from simcoll.warm_torch import warm_up

    remove_earlier(dry_run.folder)
    warm_up()
    with progress_bar("dry run") as progress:
        report = preflight(dry_run, plan, progress)
    outlet.save(report, dry_run.folder)
    outlet.show(report)
    return exit_code(report)


def sizes_asked(options: argparse.Namespace) -> tuple[int, int]:
    """World size and ranks a node; raises ValueError where they are not stated or no numbers of ranks."""
    size, local = options.world_size, options.gpus_per_node or _GPUS_A_NODE
    if size is None and is_topology_given(options):
        from simcoll.topology import ranks

        size = len(ranks(topology_of(options)))
    if size is None:
        raise ValueError("how many ranks? give --world-size N, or a topology")
    if not 1 <= size <= _MOST_RANKS:
        raise ValueError(f"--world-size {size}: expected a number of ranks, from 1 to {_MOST_RANKS}")
    return size, min(local, size)


def ranks_asked(options: argparse.Namespace, size: int) -> list[int] | None:
    """Which ranks are to run, None where the run chooses; raises ValueError."""
    from simcoll.verifier.ranges import parse_ranks, ranks_text

    if options.ranks in (None, "auto"):
        return None
    ranks = sorted(set(parse_ranks(options.ranks)))
    if beyond := [rank for rank in ranks if rank >= size]:
        raise ValueError(f"--ranks {options.ranks:.80}: {ranks_text(beyond)} of {size}; ranks count from 0")
    return ranks


def check_dry_run(options: argparse.Namespace) -> None:
    """Raises ValueError where an option of a dry run has no sense."""
    for name, least in (("steps", 1), ("jobs", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} {value}: expected a number, at least {least}")
    for name in ("timeout", "memory"):
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"--{name} {value}: expected a number, more than 0")
