"""How far the clocks of a job's hosts are apart, by the collectives that their ranks completed.

None ends on one rank before it has begun on all. Where that bounds the difference of two hosts' clocks away from zero,
the times of one are moved, by the least that explains the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcoll.blackbox.accounts import LaunchAccount
from simcoll.blackbox.reader import BlackBox
from simcoll.core.record import Event, State
from simcoll.core.steps import StepMarks
from simcoll.core.trace import Slots
from simcoll.spec.collectives import COLLECTIVES

_COMPARED = 64
"""So many of the last collectives that two ranks completed are compared for their clocks."""

AGREE_BELOW_NS = 50 * 10**6
"""Clocks that are closer than that agree."""

_ASKED = 4
"""Ranks of a host whose groups are looked through for one that it shares with a host whose clock is known."""

_Times = npt.NDArray[np.int64]


def clock_leads(boxes: Sequence[BlackBox]) -> dict[str, int]:
    """The lead (ns) of each host's clock over that of the first box's host; those that may agree are left out."""
    hosts: dict[str, list[BlackBox]] = {}
    for box in boxes:
        hosts.setdefault(box.host, []).append(box)
    if len(hosts) < 2 or "" in hosts:
        return {}
    first, *waiting = hosts
    leads = {first: 0}
    known = {box.rank: box for box in hosts[first]}
    # A host may share groups only with one whose clock is found later.
    found = True
    while waiting and found:
        found = False
        for host in waiting[:]:
            lead = _lead_of(hosts[host][:_ASKED], known)
            if lead is not None:
                leads[host] = lead[0] + leads[lead[1]]
                known |= {box.rank: box for box in hosts[host]}
                waiting.remove(host)
                found = True
    return {host: lead for host, lead in leads.items() if abs(lead) >= AGREE_BELOW_NS}


def _lead_of(boxes: Sequence[BlackBox], known: Mapping[int, BlackBox]) -> tuple[int, str] | None:
    """The lead over a host whose clock is known, and that host; None where they completed nothing together."""
    for box in boxes:
        for name in dict.fromkeys((group.name, group.ranks) for group in box.groups):
            other = next((known[rank] for rank in name[1] if rank in known), None)
            lead = None if other is None else _lead(_completed(box, name), _completed(other, name))
            if lead is not None and other is not None:
                return lead, other.host
    return None


def _lead(mine: _Times, theirs: _Times) -> int | None:
    """The least lead that explains the times, 0 where the clocks may agree; None where nothing tells."""
    _, here, there = np.intersect1d(mine[0], theirs[0], assume_unique=True, return_indices=True)
    if not len(here):
        return None
    here, there = here[-_COMPARED:], there[-_COMPARED:]
    # Both had begun it before either ended it.
    least = int((mine[1][here] - theirs[2][there]).max())
    most = int((mine[2][here] - theirs[1][there]).min())
    return 0 if least > most else min(max(0, least), most)


def _completed(box: BlackBox, name: tuple[str, tuple[int, ...]]) -> _Times:
    """The numbers of the completed collectives to which all members had to come, with their begins and ends."""
    places = [place for place, group in enumerate(box.groups) if (group.name, group.ranks) == name]
    slots = box.slots
    if len(places) == 1:
        bound = np.array([_binds(call.op) for call in box.signatures] or [False], np.bool_)
        ended = (slots["state"] == State.COMPLETED) & (slots["finished_ns"] > 0) & (slots["p2p_sequence"] == 0)
        slots = slots[ended & (slots["group"] == places[0]) & (slots["signature"] < len(bound))]
        slots = slots[bound[slots["signature"]]]
    else:
        # A group that was made again counts anew.
        slots = slots[:0]
    _, last = np.unique(slots["sequence"], return_index=True)
    return np.stack([slots[name][last].astype(np.int64) for name in ("sequence", "scheduled_ns", "finished_ns")])


def _binds(op: str) -> bool:
    spec = COLLECTIVES.get(op)
    return spec is not None and spec.rooted is None


def with_one_clock(
    boxes: list[BlackBox], launches: Sequence[LaunchAccount]
) -> tuple[list[BlackBox], Sequence[LaunchAccount], list[str], Mapping[str, int]]:
    """The records and the launchers' accounts in the time of the first box's host, notes on what was moved, and how
    much later (ns) the times of each host are now.
    """
    leads = clock_leads(boxes)
    later = {host: -lead for host, lead in leads.items()}
    if not leads:
        return boxes, launches, [], later
    moved = [moved_box(box, later.get(box.host, 0)) for box in boxes]
    accounts = [moved_account(account, later.get(account.host, 0)) for account in launches]
    return moved, accounts, [*_notes(boxes[0].host, leads)], later


def _notes(host: str, leads: Mapping[str, int]) -> Iterator[str]:
    for other, lead in leads.items():
        way = "ahead of" if lead > 0 else "behind"
        yield f"the clock of {other} is {abs(lead) / 1e9:.1f} s {way} that of {host}: its times are moved by that"


def moved_box(box: BlackBox, by_ns: int) -> BlackBox:
    """The record with all its times so much later."""
    if not by_ns:
        return box
    return replace(
        box,
        created_ns=box.created_ns + by_ns,
        closed_ns=box.closed_ns and box.closed_ns + by_ns,
        dumped_ns=box.dumped_ns and box.dumped_ns + by_ns,
        events=tuple(_moved_event(event, by_ns) for event in box.events),
        slots=moved_slots(box.slots, by_ns),
        captured=moved_slots(box.captured, by_ns),
        times=None,
    )


def moved_slots(slots: Slots, by_ns: int) -> Slots:
    """The slots with all their times so much later."""
    moved = slots.copy()
    for name in ("scheduled_ns", "started_ns", "finished_ns"):
        known = moved[name] > 0
        moved[name][known] = np.maximum(moved[name][known].astype(np.int64) + by_ns, 1).astype(np.uint64)
    return moved


def moved_account(account: LaunchAccount, by_ns: int) -> LaunchAccount:
    """The account with all its times so much later."""
    if not by_ns:
        return account
    ranks = tuple(replace(one, ended_ns=one.ended_ns and one.ended_ns + by_ns) for one in account.ranks)
    return replace(account, ranks=ranks)


def _moved_event(event: Event, by_ns: int) -> Event:
    data = event.data
    if isinstance(marks := data.get("marks"), StepMarks):
        data = {**data, "marks": StepMarks(marks.numbers, marks.times + by_ns, marks.ended)}
    return replace(event, time_ns=event.time_ns and event.time_ns + by_ns, data=data)
