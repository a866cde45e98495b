"""``simcoll preflight``: compares the ranks' programs before the job runs, with no cluster and no GPU."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.cli.arguments import (
    add_dry_run_arguments,
    add_github_argument,
    add_output_arguments,
    add_topology_arguments,
    check_github,
    request_of,
)
from simcoll.cli.output import Output
from simcoll.core.io import stated_path
from simcoll.core.ranges import parse_ranks, ranks_text
from simcoll.errors import BAD_INPUT, SimcollError, UsageError
from simcoll.launch.preconditions import PreconditionError, check_module, check_script, check_torch, prepare_folder
from simcoll.topology.request import TopologyRequest

if TYPE_CHECKING:
    from simcoll.cli.dry_run import Conclude, DryRunRequest

_GPUS_A_NODE = 8
_MOST_RANKS = 1 << 20
_RESERVED = 64
"""Room for the records of so many ranks must be there; of those that have ended they take much less."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``preflight`` to its parser."""
    # argparse looks for abbreviations among the script's own options too.
    parser.allow_abbrev = False
    parser.add_argument("--world-size", metavar="N", type=int, help="how many ranks (default: the topology's)")
    parser.add_argument(
        "--ranks", metavar="LIST|auto", default="auto", help="ranks to run, such as 0-3,8 (default: auto, all up to 64)"
    )
    add_dry_run_arguments(parser)
    parser.add_argument(
        "--require",
        choices=["complete"],
        help="exit with 3 also where a rank was not followed to its program's end",
    )
    add_output_arguments(parser)
    add_github_argument(parser)
    add_topology_arguments(parser)
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module's name, as Python's -m has it"
    )
    parser.add_argument("script", metavar="script.py", type=stated_path, help="the program, unchanged")
    rest = parser.add_argument("arguments", metavar="args", nargs=argparse.REMAINDER, help="its own arguments")
    rest.required = False


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll preflight``; the exit code of the contract."""
    request = request_of(PreflightRequest, options)
    output = Output(json=options.json, plain=options.plain, github=options.github)
    try:
        check_github(github=options.github, json=options.json)
    except UsageError as error:
        return output.refuse(BAD_INPUT, str(error))
    return preflight(request, output)


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """A dry run as it was asked for: ``ranks`` is as typed, ``timeout`` seconds, ``memory`` GiB of each rank."""

    script: Path
    arguments: Sequence[str]
    module: bool
    world_size: int | None
    ranks: str | None
    steps: int | None
    fake_tensors: bool
    device: str
    out: Path | None
    timeout: float
    memory: float | None
    jobs: int | None
    executor: str | None
    require: str | None
    topology: TopologyRequest

    def sizes(self) -> tuple[int, int]:
        """World size and ranks a node; raises UsageError where they are not given or no numbers of ranks."""
        size, local = self.world_size, self.topology.gpus_per_node
        if local is not None and local < 1:
            raise UsageError(f"--gpus-per-node {local}: expected a number, at least 1")
        if size is None and self.topology.is_given:
            from simcoll.topology.graph import ranks

            size = len(ranks(self.topology.build()))
        if size is None:
            raise UsageError("how many ranks? give --world-size N, or a topology")
        if not 1 <= size <= _MOST_RANKS:
            raise UsageError(f"--world-size {size}: expected a number of ranks, from 1 to {_MOST_RANKS}")
        return size, min(_GPUS_A_NODE if local is None else local, size)

    def chosen_ranks(self, size: int) -> list[int] | None:
        """The ranks of ``size`` that run, None where simcoll chooses; raises UsageError."""
        if self.ranks in (None, "auto"):
            return None
        chosen = sorted(set(parse_ranks(str(self.ranks))))
        if beyond := [rank for rank in chosen if rank >= size]:
            raise UsageError(f"--ranks {self.ranks:.80}: {ranks_text(beyond)} of {size}; ranks count from 0")
        return chosen

    def check(self) -> None:
        """Raise UsageError for numbers that cannot be."""
        for name, least in (("steps", 1), ("jobs", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name} {value}: expected a number, at least {least}")
        for name in ("timeout", "memory"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"--{name} {value}: expected a number, more than 0")

    def check_program(self) -> None:
        """Raise PreconditionError for a script or module that cannot run."""
        if self.module:
            check_module(str(self.script))
        else:
            check_script(self.script, compiles=True)

    def dry_run(self, size: int, local: int, ranks: list[int] | None, conclude: Conclude | None) -> DryRunRequest:
        """Returns the request of the dry run, which processes that import torch carry out."""
        from simcoll.cli.dry_run import DryRunRequest, show, show_complete
        from simcoll.dryrun.chosen_ranks import FOR_PRICE, FOR_VERDICT
        from simcoll.dryrun.driver import DryRunPlan
        from simcoll.dryrun.rank.settings import DryRun

        memory = None if self.memory is None else int(self.memory * (1 << 30))
        dry_run = DryRun(
            self.script,
            list(self.arguments),
            size,
            local,
            Path(),
            self.steps,
            self.fake_tensors,
            memory,
            self.module,
            self.device == "cuda",
            conclude is not None,
        )
        return DryRunRequest(
            dry_run,
            DryRunPlan(ranks, self.timeout, self.jobs, FOR_VERDICT if conclude is None else FOR_PRICE),
            lambda: prepare_folder(self.out, min(_RESERVED, len(ranks or range(size)))),
            self.check_program,
            conclude or (show if self.require is None else show_complete),
            self.executor,
        )


def preflight(request: PreflightRequest, output: Output, conclude: Conclude | None = None) -> int:
    """Carry out a dry run; the exit code of the contract.

    ``conclude`` is given the verdict, which is not shown then, and the ranks' computation is counted.
    """
    from simcoll.dryrun.outer_job import outer_job

    try:
        job = outer_job(os.environ)
        size, local = request.sizes()
        ranks = request.chosen_ranks(size)
        request.check()
        if job is not None and request.executor is not None:
            raise UsageError(
                f"--executor {request.executor}: this is {job.name} of a launcher; start it once, without one"
            )
        if job is None:
            # Before torch takes its seconds; processes of a job say it together, when they have met.
            request.check_program()
        check_torch()
    except PreconditionError as error:
        return output.refuse(error.code, str(error))
    except (SimcollError, ValueError) as error:
        return output.refuse(BAD_INPUT, str(error))
    _forget_launcher()
    from simcoll.cli.dry_run import carry_out

    return carry_out(request.dry_run(size, local, ranks, conclude), job, output)


def _forget_launcher() -> None:
    # Before torch is imported: real GPUs are left alone.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # This process is no rank: records of its ranks are not named after an attempt of its own.
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC_")]:
        del os.environ[name]
