"""The command line: ``simcoll run``, ``verify``, ``simulate``, ``estimate``, ``topology``, ``rules`` and more.

Importing the package and reading options imports no torch; each command imports what it needs when it is called.
Among the modules here only ``dry_run`` imports code that needs torch. Exit codes: 0 nothing wrong, 1 the program could
not start or failed before any group existed, 2 usage or unreadable input, 3 findings.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn, Protocol, cast

from simcoll import __version__
from simcoll.cli.arguments import HelpPage, add_run_arguments
from simcoll.errors import BAD_INPUT, CANNOT_START, OK, StdoutError

_ABOUT = "Records what every rank says to every other rank, proves that they agree, and prices it."
_BEGIN = (
    "`simcoll run --nproc-per-node 4 train.py` is the place to begin; `simcoll COMMAND --help` lists options. "
    "Exit codes: 0 nothing wrong, 1 the program could not start, 2 usage or unreadable input, 3 findings, 4 a running "
    "job stands (status, top)."
)
_VERSION_HELP = "show simcoll's version and exit; with --json those of Python, torch and others too"

_COMMANDS: Final = {
    "run": "start a job as torchrun does, and report what is wrong",
    "demo": "a planted bug on four simulated ranks, no torch needed",
    "verify": "say what happened to a job, from what its ranks left",
    "status": "say in one line whether a running job moves, and why not; for scripts",
    "top": "watch a running job: who waits for whom, since when, and why",
    "metrics": "give the figures of a running job to Prometheus, by HTTP or in a file",
    "simulate": "play a scenario, or a Python program, on ranks in this process",
    "preflight": "run a script once for each rank, alone and without a cluster, and verify that the ranks agree",
    "topology": "list, show, import or draw topologies",
    "estimate": "what a collective, or a recorded job, costs on a cluster that need not be there",
    "plan": "what a training step of a model costs on a cluster that need not be there, and whether it fits",
    "calibrate": "measure this cluster, and write a topology of it",
    "rules": "list the findings, or explain one",
}
"""The help text of each command; the module of the same name in this package implements it."""

_PASSING_ON: Final = ("run", "calibrate")
"""The commands that read their arguments themselves: what they do not know is torchrun's."""


class _Command(Protocol):
    """A command's module. It parses its options into a request, and no other module sees them."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options to its parser."""

    def run_command(self, options: argparse.Namespace) -> int:
        """Carry the command out; the exit code of the contract."""


class _CommandLineError(Exception):
    """A command line that cannot be understood; the text says why, and where its options are explained."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"{reason}; see `{command} --help`")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and a document with ``--json``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpPage, **options})

    def error(self, message: str) -> NoReturn:
        raise _CommandLineError(self.prog, message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of the contract."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] and arguments[0] in _PASSING_ON:
            return _run_passing_on(arguments[0], arguments[1:])
        if sorted(arguments) == ["--json", "--version"]:
            return _show_versions()
        return _run_parsed(arguments)
    except _CommandLineError as error:
        return _refuse(str(error), json="--json" in arguments)
    except KeyboardInterrupt:
        return _end_early("interrupted", 130)
    except BrokenPipeError:
        # The reader of stdout has gone (`simcoll ... | head`): no word about it.
        _drop_stdout()
        return CANNOT_START
    except MemoryError:
        return _end_early("there is not enough memory; give it more, or read fewer files at once", BAD_INPUT)
    except StdoutError as error:
        _drop_stdout()
        return _end_early(str(error), BAD_INPUT)


def _refuse(why: str, *, json: bool) -> int:
    from simcoll.cli.output import Output

    return Output(json=json).refuse(BAD_INPUT, why)


def _end_early(why: str, code: int) -> int:
    from simcoll.cli.output import warn

    warn(why)
    return code


def _drop_stdout() -> None:
    """Discard all that is still to be written to stdout: the interpreter would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_versions() -> int:
    """``--version --json``: the versions that a report of a fault should state."""
    from simcoll.cli.output import Output
    from simcoll.core.versions import versions

    Output(json=True).render("", versions)
    return OK


def _run_passing_on(command: str, arguments: Sequence[str]) -> int:
    if command == "calibrate":
        from simcoll.cli.calibrate import add_arguments, run_command

        parser = _Parser(prog="simcoll calibrate", allow_abbrev=False)
        add_arguments(parser)
        return run_command(*parser.parse_known_args(arguments))
    from simcoll.launch.torchrun_arguments import asks_for_help

    if asks_for_help(arguments):
        parser = _Parser(prog="simcoll run", add_help=False)
        add_run_arguments(parser)
        parser.print_help()
        return OK
    from simcoll.cli.run import run

    return run(arguments)


def _run_parsed(arguments: Sequence[str]) -> int:
    arguments, after = _split(arguments)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    if asked is not None and asked == arguments[0] and asked not in _COMMANDS:
        expected = _nearest(asked, _COMMANDS) or f"one of {', '.join(_COMMANDS)}"
        raise _CommandLineError("simcoll", f"no command {asked!r:.60}, expected {expected}")
    known = asked in _COMMANDS and asked not in _PASSING_ON
    command = cast(_Command, import_module(f"simcoll.cli.{asked}")) if known else None
    options, unknown = _parser(asked, command).parse_known_args(arguments)
    if unknown or command is None:
        own = " (a script's own options follow -- at the end)" if asked == _TAKING_SCRIPTS else ""
        meant = _nearest(unknown[0].partition("=")[0], [f"--{name.replace('_', '-')}" for name in vars(options)])
        meant = f", expected {meant}" if meant and unknown[0].startswith("-") else ""
        said = f"unrecognized arguments: {' '.join(unknown)}{meant}{own}"
        raise _CommandLineError(f"simcoll {options.command}", said)
    if after:
        options.after = after
    return command.run_command(options)


def _nearest(word: str, known: Iterable[str]) -> str:
    """The names that a misspelled word may have meant; an empty text where it resembles none."""
    from difflib import get_close_matches

    return " or ".join(get_close_matches(word.lower(), list(known), n=2, cutoff=0.7))


_TAKING_SCRIPTS = "estimate"
"""The command that reads its own options before and after its subject, so that a script's need a mark."""


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Splits ``estimate``'s arguments at ``--``: those behind it are the script's."""
    if arguments[:1] != [_TAKING_SCRIPTS] or "--" not in arguments:
        return arguments, []
    place = list(arguments).index("--")
    return arguments[:place], arguments[place + 1 :]


def _parser(asked: str | None, command: _Command | None) -> argparse.ArgumentParser:
    """The parser of all commands; only that of the one that is asked for has options, of which its module knows."""
    parser = _Parser(prog="simcoll", description=_ABOUT, epilog=_BEGIN)
    parser.add_argument("--version", action="version", version=f"simcoll {__version__}", help=_VERSION_HELP)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, about in _COMMANDS.items():
        described = f"{about[0].upper()}{about[1:]}."
        added = commands.add_parser(name, help=about, description=described, add_help=name not in _PASSING_ON)
        if command is not None and name == asked:
            command.add_arguments(added)
    return parser
