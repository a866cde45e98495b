"""``simcoll preflight``: whether the ranks' programs agree, before the job runs, with no cluster and no GPU."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.cli.arguments import add_output_arguments
from simcoll.cli.topology_arguments import Commands, add_topology_arguments, is_topology_given, topology_of
from simcoll.core.io import stated_path

if TYPE_CHECKING:
    from simcoll.cli.dry_run import Conclude, DryRunRequest
    from simcoll.cli.output import Output

DRY_RUN_SECONDS = 600.0
"""How long each rank may take, unless said otherwise."""

_GPUS_A_NODE = 8
_MOST_RANKS = 1 << 20
_RESERVED = 64
"""Room for the records of so many ranks must be there; of those that have ended they take much less."""


def add_preflight_command(commands: Commands) -> None:
    """Add ``preflight`` to the command line's parser."""
    about = "run a script once for each rank, alone and without a cluster, and verify that the ranks agree"
    parser = commands.add_parser("preflight", help=about, description=f"{about.capitalize()}.")
    parser.add_argument("--world-size", metavar="N", type=int, help="how many ranks (default: the topology's)")
    parser.add_argument(
        "--ranks", metavar="LIST|auto", default="auto", help="which run, such as 0-3,8 (default: auto, all up to 64)"
    )
    add_dry_run_arguments(parser)
    add_output_arguments(parser)
    add_topology_arguments(parser)
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module's name, as Python's -m has it"
    )
    parser.add_argument("script", metavar="script.py", type=stated_path, help="the program, unchanged")
    parser.add_argument("arguments", metavar="args", nargs=argparse.REMAINDER, help="its own arguments")


def add_dry_run_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options of a dry run, which ``estimate`` has too."""
    parser.add_argument("--steps", metavar="K", type=int, help="end each rank after K steps of an optimiser")
    parser.add_argument("--fake-tensors", action="store_true", help="tensors without memory, for large models")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="what programs find: GPUs, pretended, or none (cuda)"
    )
    parser.add_argument("--out", metavar="DIR", type=stated_path, help="where records, output and report go")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=DRY_RUN_SECONDS, help="for each rank (600)")
    parser.add_argument("--memory", metavar="GIB", type=float, help="address space of each rank (default: no limit)")
    parser.add_argument("--jobs", metavar="N", type=int, help="ranks at a time (default: the cores)")


def run_preflight(options: argparse.Namespace) -> int:
    """Carry out ``simcoll preflight``; the exit code of the contract."""
    from simcoll.cli.output import Output

    return run_dry(options, Output(json=options.json, plain=options.plain))


def run_dry(options: argparse.Namespace, outlet: Output, conclude: Conclude | None = None) -> int:
    """Carry out a dry run; the exit code of the contract.

    ``conclude`` is given the verdict, which is not shown then, and what the ranks compute is counted.
    """
    from simcoll.dryrun.outer_job import outer_job
    from simcoll.errors import BAD_INPUT, SimcollError
    from simcoll.launch.preconditions import PreconditionError, check_torch

    try:
        job = outer_job(os.environ)
        size, local = sizes_asked(options)
        ranks = _ranks(options, size)
        _check(options)
        check_torch()
    except PreconditionError as error:
        return outlet.refuse(error.code, str(error))
    except (SimcollError, ValueError) as error:
        return outlet.refuse(BAD_INPUT, str(error))
    _forget_launcher()
    from simcoll.cli.dry_run import carry_out, show

    request = _request(options, size, local, ranks, counts=conclude is not None)
    return carry_out(replace(request, conclude=conclude or show), job, outlet)


def _forget_launcher() -> None:
    # Before torch is imported: real GPUs are left alone.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # This process is no rank: records of its ranks are not named after an attempt of its own.
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC_")]:
        del os.environ[name]


def _request(
    options: argparse.Namespace, size: int, local: int, ranks: list[int] | None, *, counts: bool
) -> DryRunRequest:
    from simcoll.cli.dry_run import DryRunRequest
    from simcoll.dryrun.driver import DryRunPlan
    from simcoll.dryrun.rank.main import DryRun
    from simcoll.launch.preconditions import prepare_folder

    memory = None if options.memory is None else int(options.memory * (1 << 30))
    dry_run = DryRun(
        options.script,
        options.arguments,
        size,
        local,
        Path(),
        options.steps,
        options.fake_tensors,
        memory,
        options.module,
        options.device == "cuda",
        counts,
    )
    return DryRunRequest(
        dry_run,
        DryRunPlan(ranks, options.timeout, options.jobs),
        lambda: prepare_folder(options.out, min(_RESERVED, len(ranks or range(size)))),
        lambda: _check_program(options),
    )


def _check_program(options: argparse.Namespace) -> None:
    from simcoll.launch.preconditions import check_module, check_script

    if options.module:
        check_module(str(options.script))
    else:
        check_script(options.script, compiles=True)


def sizes_asked(options: argparse.Namespace) -> tuple[int, int]:
    """World size and ranks a node; raises ValueError where they are not stated or no numbers of ranks."""
    size, local = options.world_size, options.gpus_per_node
    if local is not None and local < 1:
        raise ValueError(f"--gpus-per-node {local}: expected a number, at least 1")
    if size is None and is_topology_given(options):
        from simcoll.topology.graph import ranks

        size = len(ranks(topology_of(options)))
    if size is None:
        raise ValueError("how many ranks? give --world-size N, or a topology")
    if not 1 <= size <= _MOST_RANKS:
        raise ValueError(f"--world-size {size}: expected a number of ranks, from 1 to {_MOST_RANKS}")
    return size, min(_GPUS_A_NODE if local is None else local, size)


def _ranks(options: argparse.Namespace, size: int) -> list[int] | None:
    from simcoll.core.ranges import parse_ranks, ranks_text

    if options.ranks in (None, "auto"):
        return None
    ranks = sorted(set(parse_ranks(options.ranks)))
    if beyond := [rank for rank in ranks if rank >= size]:
        raise ValueError(f"--ranks {options.ranks:.80}: {ranks_text(beyond)} of {size}; ranks count from 0")
    return ranks


def _check(options: argparse.Namespace) -> None:
    for name, least in (("steps", 1), ("jobs", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} {value}: expected a number, at least {least}")
    for name in ("timeout", "memory"):
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"--{name} {value}: expected a number, more than 0")
