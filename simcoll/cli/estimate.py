"""``simcoll estimate``: its options, and the choice of the subject to be priced.

A collective is priced by `simcoll.cli.estimate_op`, a recorded job by `simcoll.cli.price`, and a script that has not
run by `simcoll.cli.estimate_script`; each is imported where it is asked for.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from simcoll.cli.arguments import add_dry_run_arguments, add_output_arguments, add_topology_arguments, request_of
from simcoll.cli.output import Output, warn
from simcoll.core.io import stated_path
from simcoll.errors import BAD_INPUT, UsageError
from simcoll.spec.collectives import COLLECTIVES

_RECORD_SUFFIXES = (".simcoll", ".pkl", ".pickle", ".json")
_DEFAULT_STEPS = 3
_SCRIPT = "a script"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``estimate`` to its parser."""
    parser.description = f"Say {parser.description[0].lower()}{parser.description[1:]}" if parser.description else None
    parser.add_argument(
        "subject",
        metavar="OP|TRACE|SCRIPT",
        nargs="+",
        help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ...; or what the ranks of a job left: "
        "black boxes, Flight Recorder dumps, folders of them; or script.py, whose own arguments follow -- at the end",
    )
    parser.add_argument(
        "--bytes",
        metavar="SIZE|MIN:MAX",
        help="as nccl-tests counts: the larger of the send and receive buffers; 1GiB, 100MB, 4096, or 1KiB:1GiB "
        "(default: 1KiB:4GiB)",
    )
    parser.add_argument("--factor", metavar="N", type=int, help="from one size of a range to the next (default: 4)")
    parser.add_argument("--algorithm", metavar="NAME", help="ring, tree, nvls, ... (default: NCCL's choice)")
    parser.add_argument("--protocol", metavar="NAME", help="LL, LL128 or Simple (default: NCCL's choice)")
    parser.add_argument("--engine", choices=("closed", "flow"), default="closed", help="default: closed")
    parser.add_argument("--bare", action="store_true", help="the bare graph, without launch and protocol overheads")
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        help="the ranks that take part, as 0-7,16 (default: all); of a script, those that run",
    )
    parser.add_argument(
        "--compare", metavar="FILE|PRESET", action="append", default=[], help="a further topology; may be repeated"
    )
    parser.add_argument(
        "--svg",
        metavar="FILE",
        type=stated_path,
        help="also draw the topology with the bottlenecks marked",
    )
    parser.add_argument("--html", metavar="FILE", type=stated_path, help="also write all of it as one HTML file")
    parser.add_argument("--explain", action="store_true", help="show the terms that add up to the time")
    add_output_arguments(parser)
    _add_pricing_arguments(parser)
    add_dry_run_arguments(parser.add_argument_group("a script", "a dry run of its ranks, as simcoll preflight has it"))
    parser.set_defaults(after=[])
    add_topology_arguments(parser)


def _add_pricing_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a recorded job", "black boxes, Flight Recorder dumps, or folders of them")
    group.add_argument(
        "--compute", metavar="HOW", help="between calls: measured, none, or the SECONDS of a step (default: measured)"
    )
    group.add_argument("--flops", metavar="FLOP", help="of one rank in a step, in place of --compute; with --gpu-peak")
    group.add_argument("--gpu-peak", metavar="FLOPS", help="the GPU's peak in operations/s, such as 989e12")
    group.add_argument(
        "--mfu",
        metavar="SHARE",
        help="the share of the peak that is reached: of --flops (default: 0.4), or of a script's "
        "(default: what measured training steps reach)",
    )
    group.add_argument(
        "--slow-link",
        metavar="A,B,FACTOR",
        action="append",
        default=[],
        help="a link FACTOR times as slow; NODE,FACTOR for all links of a node or host; may be repeated",
    )
    group.add_argument(
        "--straggler",
        metavar="RANK:FACTOR",
        action="append",
        default=[],
        help="a rank whose compute takes FACTOR times as long; RANK:+SECONDS for so much more in each step",
    )
    group.add_argument(
        "--world-size",
        metavar="N",
        type=int,
        help="the same job on N ranks, with more or fewer replicas; of a script, how many ranks it has",
    )
    group.add_argument(
        "--timeline", metavar="FILE", type=stated_path, help="write a Chrome trace-event file, for Perfetto"
    )
    group.add_argument("--picture", action="store_true", help="draw the ranks' time")


_JOB_OPTIONS = ("compute", "flops", "gpu_peak", "mfu", "slow_link", "straggler", "world_size", "timeline", "picture")
"""Options of jobs, refused with one collective: recorded jobs and scripts take them."""


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll estimate``; the exit code of the contract."""
    output = Output(json=options.json, plain=options.plain)
    first = str(options.subject[0])
    try:
        if _is_script(first):
            return _price_script(options, output)
        if options.executor is not None:
            raise UsageError("--executor goes with a script, whose ranks it runs; leave it out")
        if _is_record(first):
            return _price_records(options, output)
        if os.path.exists(first):
            warn(f"{first} is taken as the collective; for the file or folder of that name write ./{first}")
        return _price_op(options, output)
    except UsageError as error:
        return output.refuse(BAD_INPUT, str(error))


def _price_op(options: argparse.Namespace, output: Output) -> int:
    from simcoll.cli.estimate_op import OpRequest, price_op

    if len(options.subject) > 1:
        raise UsageError(f"{options.subject[1]!r:.60} is one argument too many: expected one collective, or records")
    if given := [name for name in _JOB_OPTIONS if getattr(options, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} goes with a recorded job, not with one collective")
    request = request_of(OpRequest, options, op=options.subject[0])
    return price_op(request, output)


def _price_records(options: argparse.Namespace, output: Output) -> int:
    from simcoll.cli.price import PricingRequest, price_records

    _refuse_op_options(options, "a recorded job", "bytes", "factor", "ranks")
    request = request_of(PricingRequest, options)
    return price_records(request, [Path(path) for path in options.subject], output)


def _price_script(options: argparse.Namespace, output: Output) -> int:
    """The script has as many ranks as are asked for: none of its scenarios changes that."""
    from simcoll.cli.estimate_script import price_script
    from simcoll.cli.preflight import PreflightRequest
    from simcoll.cli.price import PricingRequest

    _refuse_op_options(options, _SCRIPT, "bytes", "factor")
    dry_run = request_of(
        PreflightRequest,
        options,
        script=Path(options.subject[0]),
        arguments=[*options.subject[1:], *options.after],
        module=False,
        ranks=options.ranks or "auto",
        steps=_DEFAULT_STEPS if options.steps is None else options.steps,
        require=None,
    )
    pricing = request_of(PricingRequest, options, world_size=None)
    return price_script(dry_run, pricing, output, are_steps_given=options.steps is not None)


def _refuse_op_options(options: argparse.Namespace, subject: str, *names: str) -> None:
    given = [name for name in names if getattr(options, name) is not None]
    given += ["explain"] if options.explain else []
    if given:
        own = " (the script's own options follow -- at the end)" if subject == _SCRIPT else ""
        raise UsageError(f"--{given[0]} goes with one collective, not with {subject}; leave it out{own}")


def _is_script(subject: str) -> bool:
    """True if a program is meant, and no record: a Python file, or a folder that Python runs."""
    return subject.lower().endswith((".py", ".pyz")) or os.path.isfile(os.path.join(subject, "__main__.py"))


def _is_record(subject: str) -> bool:
    """True if a path is meant: a name that is no collective's, and that exists or looks like a path."""
    path = Path(subject)
    if subject in COLLECTIVES:
        return False
    return (
        os.path.exists(subject) or len(path.parts) > 1 or os.sep in subject or path.suffix.lower() in _RECORD_SUFFIXES
    )
