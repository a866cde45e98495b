"""``simcoll top``: a live view of a job that records."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from simcoll.cli.arguments import add_output_arguments, request_of, stated_seconds
from simcoll.cli.output import Output
from simcoll.cli.status import exit_code, seen_twice
from simcoll.core.io import stated_path
from simcoll.errors import BAD_INPUT, OK, UsageError
from simcoll.live.document import job_document
from simcoll.live.folder import job_folder
from simcoll.live.now import JobNow, Motion
from simcoll.live.screen import FILTERS, ORDERS, JobScreen, ScreenState
from simcoll.live.watch import JobWatch

_LONGEST_SECONDS = 1e6
_SETTLE_SECONDS = 2.0
"""So long a launcher may take to write down how ranks ended whose processes are gone."""

_RESTART_SECONDS = 60.0
"""So long a launcher that has not ended may take to start its ranks again, and they until they record."""

_KEYS = "q quit  p pause  s sort  f filter  g group  r rank  j/k down/up"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``top`` to its parser."""
    parser.epilog = f"Keys: {_KEYS}."
    add_output_arguments(parser)
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        type=stated_path,
        help="where the job records (default: the newest folder in simcoll-out)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="one picture, and the exit code of simcoll status; without it --json is a line for each look",
    )
    parser.add_argument("--interval", metavar="SECONDS", type=float, default=1.0, help="between two looks (1)")
    parser.add_argument("--stall", metavar="SECONDS", type=stated_seconds, help="as for simcoll status")


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll top``; the exit code of the contract."""
    return top(request_of(TopRequest, options))


@dataclass(frozen=True, slots=True)
class TopRequest:
    """The options of ``simcoll top``; ``interval`` and ``stall`` are in seconds."""

    folder: Path | None
    once: bool
    interval: float
    stall: float | None
    json: bool
    plain: bool


def top(request: TopRequest) -> int:
    """Show a job until it has ended or a key ends the view; the exit code is that of the last look.

    Without a terminal, and with ``--plain``, a picture is printed for each look; with ``--json`` a line of JSON.
    """
    output = Output(json=request.json, plain=request.plain)
    try:
        if not 0 < request.interval < _LONGEST_SECONDS:
            raise UsageError(f"--interval {request.interval:g}: expected seconds, such as 0.5")
        folder = job_folder(request.folder)
        if request.once:
            job = seen_twice(JobWatch(folder, request.stall))
            output.render(JobScreen(job, ScreenState()), lambda: job_document(job))
            return exit_code(job)
    except UsageError as error:
        return output.refuse(BAD_INPUT, str(error))
    with ThreadPoolExecutor(1, "simcoll-judge") as executor:
        watch = JobWatch(folder, request.stall, executor)
        if request.json or request.plain or not (sys.stdout.isatty() and sys.stdin.isatty()):
            return _follow(watch, request, output)
        return _view(watch, request.interval)


def _follow(watch: JobWatch, request: TopRequest, output: Output) -> int:
    """Print each look until the job has ended; the last one has all that the verifier finds."""
    over_since, shown = None, False
    while True:
        begun = time.monotonic()
        job = watch.look()
        over = job is not None and job.motion is Motion.ENDED
        over_since = (over_since or begun) if over else None
        settled = job is not None and over_since is not None and _is_settled(job, begun - over_since)
        job = watch.last_look() if settled else job
        if job is not None:
            if request.json:
                output.hand_over(json.dumps(job_document(job)))
            else:
                if shown:
                    output.hand_over("")
                output.render(JobScreen(job, ScreenState()), dict)
                shown = True
            if settled:
                return exit_code(job)
        time.sleep(max(request.interval - (time.monotonic() - begun), 0.0))


def _is_settled(job: JobNow, seconds: float) -> bool:
    """True if nothing more is to come of a job whose ranks ended so long ago: how they ended, or another attempt."""
    if not job.over:
        return seconds >= _RESTART_SECONDS
    # The monitor writes what it saw when the launcher has ended.
    ended_ns = max(one.ended_ns for one in job.ranks)
    return seconds >= _SETTLE_SECONDS or (job.told and job.time_ns - ended_ns >= _SETTLE_SECONDS * 1e9)


def _view(watch: JobWatch, interval: float) -> int:
    """The picture on a terminal, with keys."""
    console = Console(markup=False, emoji=False, highlight=False)
    choice, job = ScreenState(), watch.look()
    with _ended_by_signals(), _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        looked = time.monotonic()
        while True:
            height = shutil.get_terminal_size().lines
            picture = Text("no rank has recorded yet") if job is None else JobScreen(job, choice, height - 1)
            live.update(_with_keys(picture), refresh=True)
            key = _pressed(max(interval - (time.monotonic() - looked), 0.0))
            if key == "q":
                break
            choice = chosen(choice, key, job)
            if time.monotonic() - looked >= interval:
                looked = time.monotonic()
                seen = watch.look()
                job = job if choice.paused and job is not None else seen
    return OK if job is None else exit_code(job)


def _with_keys(picture: RenderableType) -> Group:
    return Group(picture, Text(_KEYS, "dim"))


def chosen(choice: ScreenState, key: str, job: JobNow | None) -> ScreenState:
    """The choice after a key was pressed; a key without a meaning changes nothing."""
    if key == "p":
        return replace(choice, paused=not choice.paused)
    if key == "s":
        return replace(choice, order=_next(list(ORDERS), choice.order))
    if key == "f":
        return replace(choice, shown=_next(list(FILTERS), choice.shown), first=0)
    if job is not None and key == "g" and job.groups:
        group = 0 if choice.group is None else choice.group + 1
        return replace(choice, group=group if group < len(job.groups) else None, first=0)
    if job is not None and key == "r" and job.ranks:
        ranks = [one.rank for one in job.ranks]
        following = [rank for rank in ranks if choice.rank is None or rank > choice.rank]
        return replace(choice, rank=following[0] if following else None)
    if key in ("j", "k"):
        return replace(choice, first=max(choice.first + (1 if key == "j" else -1), 0))
    return choice


def _next(names: list[str], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have a signal that ends the command leave the terminal as it was."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Have the terminal give each key at once, and not show it."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> str:
    """The key that is pressed within so many seconds; empty for none. The end of the input is ``q``."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if not ready:
        return ""
    data = os.read(sys.stdin.fileno(), 1)
    return data.decode("ascii", "replace") if data else "q"
