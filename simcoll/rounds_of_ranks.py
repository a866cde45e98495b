"""Runs ranks of a dry run again that have ended for want of a message, when whoever sends it has been run.

A pipeline's stages tell each other shapes, one after the other there and back: ranks are run in turns upwards and
downwards, so that each way takes one round. When no more messages come, ranks run a last time without them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from simcoll.recorder import box_name

FOLDER = "carried"
"""Where ranks leave what they send, in the dry run's folder."""

LAST = "last"
"""The file that tells ranks that no more messages come."""

STUCK = 241
"""The exit code of a rank that waits for a message that is never sent."""

_End = TypeVar("_End")


def wanting(folder: Path, rank: int) -> Path:
    """The file in which a rank writes whose message it has ended for, and the message's name."""
    return folder / f"{rank}.wants"


def run_in_rounds(
    run: Callable[[Iterable[int], bool], Mapping[int, _End]], ranks: Iterable[int], folder: Path, most: int
) -> dict[int, _End]:
    """Run ranks until none of them lacks a message that comes; how they ended.

    ``run`` is told whether this is the first round. Ranks that have to send a message are run too, as long as that
    makes no more than ``most`` altogether.
    """
    carried = folder / FOLDER
    (carried / LAST).unlink(missing_ok=True)
    ends = dict(run(ranks, True))
    upwards = True
    while wanted := _wanted(carried, ends):
        upwards = not upwards
        senders = {sender for sender, _ in wanted.values()} - set(ends)
        if len(ends) + len(senders) > most:
            senders = set()
        if not senders and not any((carried / message).exists() for _, message in wanted.values()):
            (carried / LAST).touch()
        for rank in wanted:
            wanting(carried, rank).unlink(missing_ok=True)
            (folder / box_name(rank)).unlink(missing_ok=True)
        ends |= run(sorted({*wanted, *senders}, reverse=not upwards), False)
    return ends


def forget_carried(folder: Path) -> None:
    """Remove what an ended dry run has carried."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / FOLDER)


def _wanted(carried: Path, ranks: Mapping[int, object]) -> dict[int, tuple[int, str]]:
    """By rank that has ended for want of a message: who sends it, and its name."""
    found = {}
    for rank in ranks:
        with suppress(FileNotFoundError):
            sender, _, message = wanting(carried, rank).read_text(encoding="ascii").partition(" ")
            found[rank] = int(sender), message
    return found
