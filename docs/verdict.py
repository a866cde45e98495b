"""Writes docs/verdict.md anew from the list of explanations: ``python docs/verdict.py``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from simcoll.verifier.explanations import EXPLANATIONS, SHOWN, STANDSTILL, Explanation

TARGET = Path(__file__).with_name("verdict.md")

_HEAD = """# How a verdict is made

Written by `python docs/verdict.py` from `verifier/explanations.py`; a test compares the two. It answers why a report
says what it says. The table leads from a finding's code to its explanations; each states what it reports, on what
evidence, and which explanations silence it. [The rules](rules/README.md) state what the codes mean.

`simcoll verify` takes these steps (`verifier/postmortem.py`):

1. *The job at its end.* The records are cut at the time when the job was ended for a stall, or when torch's watchdog
   wrote a dump and aborted a rank: ranks that end after that fail because of it (`verifier/halts/failed_calls.py`).
2. *The stall.* Where neither a launcher nor a monitor saw the job, its records show in which calls the ranks wait or
   have failed (`verifier/halts/inferred.py`).
3. *Disagreements.* Collectives are aligned and compared (`verifier/agreement/mismatches.py`), messages are matched and
   compared (`verifier/agreement/p2p_matching.py`, `p2p_mismatches.py`). Where ranks of a group built different models
   (SC504), their later disagreements are left out (`verifier/agreement/ddp_models.py`). Calls of ranks outside a group
   (SC402) and uses of memory in flight (SC502, SC503) are added. Errors and warnings are separated.
4. *Explanations.* The explanations below are asked [in order of belief](#in-order-of-belief). One cause gives one
   finding: an explanation is not asked if one that silences it has found something, and its findings may replace those
   of an earlier one. No explanation is asked about a job that made no process group, unless it stood.
5. *The divergence.* The first error of each group states where its ranks had diverged before
   (`verifier/agreement/divergence.py`).
6. *The program's text.* Where the program is at hand, an error names the line at which its ranks parted, such as
   `if rank == 0:` (`verifier/program_text/`). Where ranks parted so that some of them make one call more, or came
   past the line of the others' call since their last one, a difference in a field becomes a skipped call (SC202). It
   stays one where a comparison with the rank, in what the call is given, tells the ranks apart.
7. *What findings say beside that.* Where a group has no majority, other groups of its kind may tell which side is wrong
   (`verifier/halts/broken_ties.py`). The line of a helper is told from its other calls
   (`verifier/views/call_sites.py`); every finding names the fields that the records leave out, and its training step.
   Where a deadlock, a missing rank, an extra call or one that differs follows from one call that went to another group
   than the others' call from its line, the finding begins with that, and its ranks parted where that group was chosen
   (`verifier/halts/wrong_group.py`). Where a receive from any source took the message for which a later one waits, it
   is named (`verifier/agreement/p2p_races.py`).
   Findings whose ranks one condition parted become one (`verifier/program_text/one_condition.py`).
8. *Unconfirmed failures.* Failures that step 2 inferred and that no finding confirms are removed from the summary.
9. *Advice.* Where something is known of the hosts, [the rules of causes](causes.md) say who should act.
"""

_STANDSTILL = """## While a job runs

For a job that stands while it runs, only disagreements among its collectives and messages are looked for, and the
explanations below, in this order. The first three silence all others, in addition to those that are named above. The
first three prove that the job will never move; so does a halt in which no rank is merely late.

{order}

{section}"""

_DRY_RUN = """## A dry run

`simcoll preflight` has the whole program of every rank that ran, and replays the programs together
(`simcoll/dryrun/verdict.py`):

1. The whole programs are judged as above. If no rank blocks in the replay, that is the verdict.
2. Otherwise the records are cut where each rank blocks, and are judged as those of a job that was ended there.
3. Errors among the whole programs (SC101 to SC110, SC202, SC203) in a call that some rank reaches replace all findings
   of step 2: a skipped call is found from the calls after it, which the real run never reaches.
4. SC202 replaces SC702 where most of a group's ranks have ended: the others made a call too many.
5. If a disagreement may come from branches taken on guessed values, all steps are repeated, first up to those branches,
   then beyond them with ranks that took the same branches; the first repetition with an error is the verdict.
"""

_SHOWN = """## What is shown first

A report shows causes before symptoms: first a failure that no disagreement came before, then the findings of these
explanations, in this order. Calls that disagree, calls of non-members and memory in flight are sorted together by time.

{order}
"""


def page() -> str:
    """The whole page."""
    table = ["| code | explanations that report it |", "|---|---|", *map(_row, sorted(_codes()))]
    sections = map(_section, EXPLANATIONS)
    running = _STANDSTILL.format(order=_list(one.name for one in STANDSTILL), section=_section(STANDSTILL[0]))
    ends = [_SHOWN.format(order=_list(SHOWN)), running, _DRY_RUN]
    return "\n".join([_HEAD, *table, "", "## In order of belief", "", *sections, *ends])


def _list(names: Iterable[str]) -> str:
    return "\n".join(f"1. {_link(name)}" for name in names)


def _codes() -> set[str]:
    return {code for one in EXPLANATIONS for code in one.codes}


def _row(code: str) -> str:
    names = [one.name for one in EXPLANATIONS if code in one.codes]
    return f"| [{code}](rules/{code}.md) | {', '.join(map(_link, names))} |"


def _section(one: Explanation) -> str:
    lines = [f"### {one.name}", "", _prose(one.find.__doc__ or ""), "", f"* reports {', '.join(one.codes)}"]
    if one.only_if_halted:
        lines.append("* asked only of a job that stood or failed")
    if one.yields_to:
        lines.append(f"* silenced by {_runs(one.yields_to)}")
    if one.replaces:
        what = _prose(one.in_place_of.__doc__ or "").rstrip(".")
        lines.append(f"* takes the place of {', '.join(map(_link, one.replaces))}: {what[0].lower()}{what[1:]}")
    return "\n".join([*lines, ""])


def _runs(names: Collection[str]) -> str:
    """The explanations of these names, those that follow each other in the list as ``first to last``."""
    runs: list[list[str]] = [[]]
    for one in EXPLANATIONS:
        if one.name in names:
            runs[-1].append(one.name)
        elif runs[-1]:
            runs.append([])
    shown = ([*map(_link, run)] if len(run) < 3 else [f"{_link(run[0])} to {_link(run[-1])}"] for run in runs)
    return ", ".join(text for run in shown for text in run)


def _prose(docstring: str) -> str:
    """A docstring as Markdown."""
    return re.sub("``(.+?)``", r"`\1`", inspect.cleandoc(docstring))


def _link(name: str) -> str:
    return f"[{name}](#{re.sub('[^a-z0-9_ -]', '', name.lower()).replace(' ', '-')})"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
