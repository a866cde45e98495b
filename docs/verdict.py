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
says what it says: find the finding's code in the table, then what its explanation reports, on what evidence, and what
would have silenced it. What the codes mean is in [the rules](rules/README.md).

`simcoll verify` takes these steps (`verifier/postmortem.py`):

1. *As of the end.* What happened after the job was ended because it stood, or after torch's watchdog wrote a dump and
   aborted a rank, is cut off: ranks that go last still fail for that (`verifier/halts/failed_calls.py`).
2. *How it stood.* Where neither a launcher nor a monitor saw the job, its records tell in which calls the ranks wait or
   have failed (`verifier/halts/inferred.py`).
3. *Disagreements.* Collectives are aligned and compared (`verifier/agreement/mismatches.py`), messages are matched and
   compared (`verifier/agreement/p2p_matching.py`, `p2p_mismatches.py`). Where ranks of a group built different models
   (SC504), what goes wrong among them later is left out (`verifier/agreement/ddp_models.py`). Calls of ranks outside a
   group (SC402) and uses of memory in flight (SC502, SC503) are put beside them. Errors and warnings are told apart.
4. *Explanations.* Those below are asked, [in this order](#in-order-of-belief). One cause gives one finding: an
   explanation is not asked where one that silences it has found something, and what it finds may take the place of what
   an earlier one has found. Nothing is asked of a job that made no process group, unless it stood.
5. *Where ranks diverged.* The first error of each group says where its ranks had come apart before
   (`verifier/agreement/divergence.py`), and every finding names the fields that the records leave out.
6. *Only what is borne out.* Failures that step 2 worked out, and that no finding bears out, are taken back from the
   summary.
"""

_STANDSTILL = """## While a job runs

A job that stands while it runs is asked only for disagreements among its collectives and messages, and for these, in
this order. Each after the third is silenced by the first three, and as below. That it never will move is proved by the
first three, and by a halt for which nobody is only late.

{order}

{section}"""

_DRY_RUN = """## A dry run

`simcoll preflight` has every rank's whole program, and replays the programs together (`simcoll/dryrun/verdict.py`):

1. The whole programs are judged as above. Where no rank blocks in the replay, that is the verdict.
2. Otherwise the records are cut where each rank blocks, and are judged as those of a job that was ended there.
3. Errors among the whole programs (SC101 to SC110, SC202, SC203) in a call that some rank reaches take the place of all
   that step 2 has found: a skipped call is found from the calls after it, which the real run never reaches.
4. SC202 takes the place of SC702 where most of a group's ranks have ended: the others made a call too many.
5. Where a disagreement may come from branches taken on guessed values, all this is done again up to those branches, and
   beyond them with ranks that took the same ones; the first of these with an error is the verdict.
"""

_SHOWN = """## What is shown first

Causes before symptoms: a failure that came before the first disagreement, and then what was found by these, in this
order. Calls that disagree, calls of non-members and memory in flight are put together in order of time.

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
