"""SC503 and SC601: calls whose own tensors lie in memory such that the backend silently gives wrong results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Record
from simcoll.verifier.findings.finding import Finding, Side, lines
from simcoll.verifier.findings.rules import BUFFERS_OVERLAP, INVALID_ARGUMENT, RULES

CODES = (INVALID_ARGUMENT.code, BUFFERS_OVERLAP.code)

DIFFERING = ("memory",)
"""The differing field of such a finding, which explains no wait."""


@dataclass(frozen=True, slots=True)
class MemoryFault:
    """A fault in the memory of one rank's call: a rule's code, and a reason in words.

    ``beyond`` says that the backend writes to memory that is not the tensor's: the process may break anywhere later.
    """

    code: str
    reason: str
    beyond: bool = False

    def to_json(self) -> dict[str, object]:
        """A JSON form, read back by :meth:`from_json`."""
        return {"rule": self.code, "reason": self.reason, "beyond": self.beyond}

    @classmethod
    def from_json(cls, value: object) -> MemoryFault | None:
        """Read what :meth:`to_json` wrote; None for anything else."""
        if not isinstance(value, dict) or value.get("rule") not in CODES or not isinstance(value.get("reason"), str):
            return None
        return cls(value["rule"], value["reason"], value.get("beyond") is True)


def memory_text(op: str, ranks: str, reason: str) -> str:
    """The sentence of a finding: ``op`` was called so on ``ranks``."""
    return f"{op} on {ranks}: {reason}"


def memory_faults(group: Group, records: Mapping[int, Record], faults: Mapping[int, MemoryFault]) -> list[Finding]:
    """One finding for each rule; ``records`` and ``faults`` are by group rank, of the same collective."""
    found = []
    for code in dict.fromkeys(fault.code for fault in faults.values()):
        places = [place for place in sorted(faults) if faults[place].code == code and place in records]
        if not places:
            continue
        ranks = [group.ranks[place] for place in places]
        first = records[places[0]]
        found.append(
            RULES[code].finding(
                memory_text(first.call.op, ranks_text(ranks), faults[places[0]].reason),
                group=group,
                sequence=first.sequence,
                ranks=ranks,
                culprits=() if len(ranks) == len(group.ranks) else ranks,
                sides=[
                    Side((rank,), records[place].call, lines([(rank, records[place].source)]))
                    for rank, place in list(zip(ranks, places, strict=True))[:8]
                ],
                differing=DIFFERING,
            )
        )
    return found
