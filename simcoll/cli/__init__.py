"""The command line: ``simcoll run``, ``verify``, ``simulate``, ``estimate``, ``topology``, ``rules`` and more.

Nothing here imports torch, and each command imports what it needs when it is called. Exit codes: 0 nothing wrong, 1
the program could not start or failed before any group existed, 2 usage or unreadable input, 3 findings.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from simcoll import __version__
from simcoll.cli.arguments import HelpPage, add_output_arguments, add_report_files, add_run_arguments
from simcoll.cli.estimate import add_estimate_command
from simcoll.cli.preflight import add_preflight_command
from simcoll.cli.simulate import add_simulate_command
from simcoll.cli.topology import add_topology_command
from simcoll.cli.topology_arguments import add_topology_arguments
from simcoll.core.io import stated_path
from simcoll.errors import StdoutError

_ABOUT = "Records what every rank says to every other rank, proves that they agree, and prices it."
_BEGIN = (
    "`simcoll run --nproc-per-node 4 train.py` is the place to begin; `simcoll COMMAND --help` lists options. "
    "Exit codes: 0 nothing wrong, 1 the program could not start, 2 usage or unreadable input, 3 findings."
)
_VERSION_HELP = "show simcoll's version and exit; with --json those of Python, torch and others too"


class _UsageError(Exception):
    """A command line that cannot be understood; the text says why, and where its options are explained."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"{reason}; see `{command} --help`")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and a document with ``--json``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpPage, **options})

    def error(self, message: str) -> NoReturn:
        raise _UsageError(self.prog, message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of the contract."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] and arguments[0] == "run":
            return _run(arguments[1:])
        if arguments[:1] and arguments[0] == "calibrate":
            return _calibrate(arguments[1:])
        if sorted(arguments) == ["--json", "--version"]:
            return _show_versions()
        return _other(arguments)
    except _UsageError as error:
        return _refuse(str(error), json="--json" in arguments)
    except KeyboardInterrupt:
        return _end_early("interrupted", 130)
    except BrokenPipeError:
        # The reader of stdout has gone (`simcoll ... | head`): no word about it.
        _drop_stdout()
        return 1
    except MemoryError:
        return _end_early("there is not enough memory; give it more, or read fewer files at once", 2)
    except StdoutError as error:
        _drop_stdout()
        return _end_early(str(error), 2)


def _refuse(why: str, *, json: bool) -> int:
    from simcoll.cli.output import Output
    from simcoll.errors import BAD_INPUT

    return Output(json=json).refuse(BAD_INPUT, why)


def _end_early(why: str, code: int) -> int:
    from simcoll.cli.output import warn

    warn(why)
    return code


def _drop_stdout() -> None:
    """Let what is still to be written to stdout go nowhere: the interpreter would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_versions() -> int:
    """``--version --json``: the versions that a report of a fault should state."""
    from simcoll.cli.output import Output
    from simcoll.core.versions import versions

    Output(json=True).render("", versions)
    return 0


def _run(arguments: Sequence[str]) -> int:
    """``run`` has no argparse parser: torchrun's options must pass through untouched."""
    from simcoll.cli.run import run
    from simcoll.launch.torchrun_arguments import asks_for_help

    if asks_for_help(arguments):
        parser = _Parser(prog="simcoll run", add_help=False)
        add_run_arguments(parser)
        parser.print_help()
        return 0
    return run(arguments)


def _calibrate(arguments: Sequence[str]) -> int:
    """What is not an option of its own is torchrun's."""
    from simcoll.cli.calibrate import ABOUT, add_options, calibrate_as_told

    parser = _Parser(prog="simcoll calibrate", description=ABOUT, allow_abbrev=False)
    add_options(parser)
    options, torchrun = parser.parse_known_args(arguments)
    return calibrate_as_told(options, torchrun)


def _other(arguments: Sequence[str]) -> int:
    arguments, after = _split(arguments)
    options, unknown = _parser().parse_known_args(arguments)
    if after:
        options.after = after
    if unknown:
        raise _UsageError(f"simcoll {options.command}", f"unrecognized arguments: {' '.join(unknown)}")
    if options.command == "verify":
        from simcoll.cli.verify import run_verify

        return run_verify(options)
    if options.command == "rules":
        from simcoll.cli.verify import show_rules

        return show_rules(options.code, json=options.json, plain=options.plain)
    if options.command == "topology":
        from simcoll.cli.topology import topology

        return topology(options)
    if options.command == "estimate":
        from simcoll.cli.estimate import run_estimate

        return run_estimate(options)
    if options.command == "preflight":
        from simcoll.cli.preflight import run_preflight

        return run_preflight(options)
    if options.command == "simulate":
        from simcoll.cli.simulate import run_simulate

        return run_simulate(options)
    from simcoll.cli.demo import main as demo

    return demo(json=options.json, plain=options.plain)


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What follows ``--`` after ``estimate script.py`` is the script's."""
    if arguments[:1] != ["estimate"] or "--" not in arguments:
        return arguments, []
    place = list(arguments).index("--")
    return arguments[:place], arguments[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="simcoll", description=_ABOUT, epilog=_BEGIN)
    parser.add_argument("--version", action="version", version=f"simcoll {__version__}", help=_VERSION_HELP)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("run", help="start a job as torchrun does, and report what is wrong", add_help=False)
    _command(commands, "demo", "a planted bug on four simulated ranks, no torch needed")
    _add_verify_options(_command(commands, "verify", "say what happened to a job, from what its ranks left"))
    add_simulate_command(commands)
    add_preflight_command(commands)
    add_topology_command(commands)
    add_estimate_command(commands)
    commands.add_parser("calibrate", help="measure this cluster, and write a topology of it", add_help=False)
    rules = _command(commands, "rules", "list the findings, or explain one")
    rules.add_argument("code", metavar="CODE", nargs="?", help="a finding's code, such as SC104")
    return parser


def _add_verify_options(parser: _Parser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        type=stated_path,
        help="black boxes or Flight Recorder dumps, or folders of them",
    )
    files = parser.add_argument_group("files")
    add_report_files(files)
    files.add_argument(
        "--srcroot",
        metavar="DIR",
        type=stated_path,
        help="where the job's sources lay; SARIF names files relative to it",
    )
    shown = parser.add_argument_group("what is shown (judged is always the whole job)")
    shown.add_argument(
        "--group", metavar="NAME", dest="groups", action="append", default=[], help="only this group; may be repeated"
    )
    shown.add_argument("--ranks", metavar="LIST", help="only these ranks, such as 0-3,8")
    shown.add_argument("--last", metavar="N", help="the last N calls of each rank, and N before each finding")
    shown.add_argument("--timeline", action="store_true", help="a picture of ranks by collectives, in order of time")
    add_topology_arguments(parser, "where the job ran: --html prices it there, and draws what holds it up")


def _command(commands: argparse._SubParsersAction[_Parser], name: str, text: str) -> _Parser:
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_output_arguments(parser)
    return parser
