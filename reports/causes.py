"""Who should act on a job that failed, in words: a block for the terminal, the rows of a page, JSON values."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simcoll.core.ranges import ranks_text
from simcoll.core.text import plain
from simcoll.verifier.findings.causes import Advice, Cause, Restart, Suspicion

_CAUSES: Final = {
    Cause.PROGRAM: "the program",
    Cause.RANK: "one rank's own data or process",
    Cause.MACHINE: "a machine",
    Cause.NETWORK: "the network",
    Cause.UNKNOWN: "unknown",
}
_RESTARTS: Final = {
    Restart.NO: "no: it would fail again",
    Restart.YES: "yes",
    Restart.WITHOUT_HOSTS: "yes, without {hosts}",
    Restart.UNKNOWN: "the evidence does not say whether it helps",
}
_SHOWN: Final = 6


def cause_text(one: Suspicion) -> str:
    """The cause, the ranks and hosts, and how strong the evidence is."""
    who = ranks_text(one.ranks) if one.ranks and one.cause is not Cause.PROGRAM else ""
    about = " on ".join(filter(None, (who, ", ".join(one.hosts))))
    about = f" ({about})" if about else ""
    return f"{_CAUSES[one.cause]}{about}, {one.strength.value} evidence"


def restart_text(one: Suspicion) -> str:
    """Whether a restart helps."""
    return _RESTARTS[one.restart].format(hosts=", ".join(one.hosts))


def advice_rows(advice: Advice) -> list[tuple[str, tuple[str, ...]]]:
    """Labels, and the lines beside each."""
    believed = advice.believed
    rows = [
        ("cause", (cause_text(believed),)),
        ("evidence", _evidence(believed)),
        ("restart", (restart_text(believed),)),
    ]
    rows += [("also", (cause_text(one), *_evidence(one))) for one in advice.others]
    return [(label, lines) for label, lines in rows if lines]


def _evidence(one: Suspicion) -> tuple[str, ...]:
    return tuple(f"{each.source}: {each.text}" for each in one.evidence[:_SHOWN])


def render_advice(advice: Advice) -> RenderableType:
    """The block of a terminal report."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, lines in advice_rows(advice):
        table.add_row(Text(label, "dim"), Group(*map(plain, lines)))
    return Padding(table, (0, 0, 0, 2))


def advice_document(advice: Advice) -> dict[str, object]:
    """The advice as JSON values; ranks are global ranks."""
    return {**_document(advice.believed), "others": [_document(one) for one in advice.others]}


def _document(one: Suspicion) -> dict[str, object]:
    return {
        "cause": one.cause.value,
        "strength": one.strength.value,
        "restart": one.restart.value,
        "ranks": list(one.ranks),
        "hosts": list(one.hosts),
        "rule": one.rule,
        "evidence": [{"source": each.source, "text": each.text} for each in one.evidence],
    }
