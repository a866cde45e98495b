"""The command line of ``simcoll run``: its own options, and torchrun's, which pass through unchanged.

torchrun's parser is authoritative and runs where torch is. Only the place where
the options end and the program begins must be known without torch, because later arguments are the program's own.
"""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path

from simcoll.core.io import stated_path

FLAGS = ("-h", "-m", "--help", "--module", "--no-python", "--run-path", "--standalone", "--virtual-local-rank")
"""torchrun's options that take no value, spelled with dashes. A test compares both tables with torchrun's parser."""

VALUED = (
    "-r",
    "-t",
    "--duplicate-stderr-filters",
    "--duplicate-stdout-filters",
    "--event-log-handler",
    "--local-addr",
    "--local-ranks-filter",
    "--log-dir",
    "--logs-specs",
    "--master-addr",
    "--master-port",
    "--max-restarts",
    "--monitor-interval",
    "--nnodes",
    "--node-rank",
    "--nproc-per-node",
    "--numa-binding",
    "--rdzv-backend",
    "--rdzv-conf",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--redirects",
    "--role",
    "--shutdown-timeout",
    "--signals-to-handle",
    "--start-method",
    "--tee",
)
"""torchrun's options that take a value."""

_OWN = frozenset({"--mode", "--out", "--stall", "--values"})
_OWN_FLAGS = ("--json", "--plain", "--strict", "--restart-by-cause", "--github")


class RunUsageError(ValueError):
    """The command line of ``simcoll run`` cannot be understood; the text is one line."""


def asks_for_help(arguments: Sequence[str]) -> bool:
    """True if ``--help`` stands where an option may stand, before the program."""
    try:
        return any(option in ("-h", "--help") for option in split(arguments).torchrun_options)
    except RunUsageError:
        return any(argument in ("-h", "--help") for argument in arguments)


def nearest_option(spelled: str) -> str:
    """The option of ``simcoll run``, torchrun's too, that a misspelled one may mean; empty where it is like none."""
    known = [name for name in (*sorted(_OWN), *_OWN_FLAGS, *FLAGS, *VALUED) if name.startswith("--")]
    name = spelled.partition("=")[0].replace("_", "-")
    return next(iter(get_close_matches(name, known, n=1, cutoff=0.7)), "")


class ProgramKind(Enum):
    """The way in which torchrun starts the program."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of ``simcoll run``. ``torchrun`` is torchrun's part, the program and its arguments included."""

    mode: str
    values: str | None
    out: Path | None
    stall: float | None
    json: bool
    plain: bool
    strict: bool
    torchrun: tuple[str, ...]
    torchrun_options: tuple[str, ...]
    program: str
    kind: ProgramKind
    local_ranks: int
    nodes: str
    restart_by_cause: bool = False
    github: bool = False

    @property
    def is_alone(self) -> bool:
        """True if the job has one node."""
        return self.nodes in ("1", "1:1")


def split(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> RunRequest:
    """Understand a command line; raises :class:`RunUsageError`.

    torchrun takes each option from ``PET_<NAME>`` in the environment where it is not given.
    """
    environment = os.environ if environment is None else environment
    own: dict[str, str] = {}
    flags = dict.fromkeys(_OWN_FLAGS, False)
    options: dict[str, str] = {}
    passed: list[str] = []
    rest = list(arguments)
    while rest and rest[0] != "--" and rest[0].startswith("-") and rest[0] != "-":
        argument = rest.pop(0)
        name, _, value = argument.partition("=")
        if argument in flags:
            flags[argument] = True
        elif name in _OWN:
            own[name] = value if argument != name else _value(name, rest)
        else:
            passed.append(argument)
            options[name] = value
            if argument == name and _takes_value(name, rest):
                options[name] = _value(name, rest)
                passed.append(options[name])
    if flags["--restart-by-cause"] and _option(options, environment, "max_restarts", "0") == "0":
        raise RunUsageError("--restart-by-cause goes with --max-restarts N, the most restarts")
    if flags["--restart-by-cause"] and own.get("--mode") == "off":
        raise RunUsageError("--restart-by-cause judges records, and --mode off makes none")
    if flags["--github"] and flags["--json"]:
        raise RunUsageError("--github does not go with --json, whose document is all that stdout carries")
    program = next((argument for argument in rest if argument != "--"), None)
    if program is None:
        raise RunUsageError("no script given; usage: simcoll run [options] [torchrun options] script.py [arguments]")
    return RunRequest(
        own.get("--mode", "detail"),
        own.get("--values"),
        _path("--out", own["--out"]) if "--out" in own else None,
        _seconds("--stall", own["--stall"]) if "--stall" in own else None,
        flags["--json"],
        flags["--plain"],
        flags["--strict"],
        (*passed, *rest),
        tuple(options),
        program,
        _kind(options, environment),
        _local_ranks(_option(options, environment, "nproc_per_node", "1")),
        _option(options, environment, "nnodes", "1"),
        flags["--restart-by-cause"],
        flags["--github"],
    )


def _path(name: str, text: str) -> Path:
    try:
        return stated_path(text)
    except ArgumentTypeError as error:
        raise RunUsageError(f"{name}: {error}") from None


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise RunUsageError(f"{name} {text}: expected a number of seconds greater than 0")
    return seconds


def _value(name: str, rest: list[str]) -> str:
    if not rest:
        raise RunUsageError(f"{name} needs a value")
    return rest.pop(0)


def _takes_value(name: str, rest: list[str]) -> bool:
    """True if the next argument belongs to this option, which may be abbreviated.

    An option that is not known, a newer torch's or a slip that torchrun's parser will name, takes what is neither a
    script nor another option.
    """
    spelled = name.replace("_", "-")
    if name.startswith("--"):
        if any(flag.startswith(spelled) for flag in FLAGS):
            return False
        if any(option.startswith(spelled) for option in VALUED):
            return True
    elif name in FLAGS + VALUED or name[:2] in ("-r", "-t"):
        return name in VALUED
    return len(rest) > 1 and not rest[0].endswith(".py") and not rest[0].startswith("--")


def _option(options: Mapping[str, str], environment: Mapping[str, str], name: str, default: str) -> str:
    for spelling in (f"--{name}", f"--{name.replace('_', '-')}"):
        if spelling in options:
            return options[spelling]
    return environment.get(f"PET_{name.upper()}", default)


def _kind(options: Mapping[str, str], environment: Mapping[str, str]) -> ProgramKind:
    def given(name: str, *short: str) -> bool:
        spelled = any(
            option.startswith("--") and f"--{name}".startswith(option.replace("_", "-")) for option in options
        )
        return spelled or any(option in options for option in short) or environment.get(_variable(name), "0") == "1"

    if given("run-path"):
        return ProgramKind.SCRIPT
    if given("no-python"):
        return ProgramKind.COMMAND
    return ProgramKind.MODULE if given("module", "-m") else ProgramKind.SCRIPT


def _variable(name: str) -> str:
    return "PET_" + name.replace("-", "_").upper()


def _local_ranks(text: str) -> int:
    """Returns the number of black boxes on this machine; ``auto``, ``gpu`` and the like count as one per core."""
    try:
        count = int(text)
    except ValueError:
        return os.cpu_count() or 1
    if count < 1:
        raise RunUsageError(f"--nproc-per-node {text}: expected a number of ranks, at least 1")
    return count
