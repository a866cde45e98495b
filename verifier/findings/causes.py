"""Who should act on a job that failed, as a value: the cause, its evidence, and whether a restart helps.

:mod:`simcoll.verifier.causes` finds it. :class:`Advice` is a part of the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """Who should act. ``rank``: something that one rank alone has, such as its data or the state of its process."""

    PROGRAM = "program"
    RANK = "rank"
    MACHINE = "machine"
    NETWORK = "network"
    UNKNOWN = "unknown"


class Strength(Enum):
    """How strong the evidence is. ``weak``: it fits the cause, and other causes too."""

    STRONG = "strong"
    WEAK = "weak"


class Restart(Enum):
    """Whether a restart helps. ``no``: it would fail again; ``unknown``: the evidence does not say."""

    NO = "no"
    YES = "yes"
    WITHOUT_HOSTS = "without hosts"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation. ``source`` says where it stands: a finding's code, ``exit code``, ``kernel log of node-3``."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One possible cause, and the name of the ``rule`` that found it.

    ``ranks`` (global) and ``hosts`` are those that it is about, as far as they are known.
    """

    rule: str
    cause: Cause
    strength: Strength
    restart: Restart
    evidence: tuple[Evidence, ...]
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """The cause that is believed, and the ``others`` for which there is evidence too, in order of belief."""

    believed: Suspicion
    others: tuple[Suspicion, ...] = ()
