"""Draws the pictures of the gallery anew, from real runs: ``python -m docs.draw_gallery [CODE...]``, or all of them.

A picture that differs from the new run in times alone stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from docs.draw_report import FINDINGS_EXIT, Played, draw, play, write
from docs.gallery import Example, examples


def main(codes: Sequence[str]) -> int:
    """Run, draw, write; the exit code says whether every run found what its program states."""
    wrong = []
    for one in examples():
        if codes and one.code not in codes:
            continue
        played = play(one.command)
        wrong += [f"{one.code}: {complaint}" for complaint in complaints(one, played)]
        if not complaints(one, played):
            drawn = write(one.picture, draw(played))
            print(f"{one.code}: {'drawn' if drawn else 'as it was'}", file=sys.stderr, flush=True)
    for complaint in wrong:
        print(f"draw_gallery: {complaint}", file=sys.stderr)
    return 1 if wrong else 0


def complaints(one: Example, played: Played) -> list[str]:
    """How a run ended otherwise than its program states: one finding, these culprits, this severity and exit code."""
    expected = [(one.code, list(one.culprits), "warning" if one.warning else "error")]
    exit_code = 0 if one.warning else FINDINGS_EXIT
    found = [(each["code"], each["culprits"], each["severity"]) for each in played.report.get("findings", ())]
    wrong = [] if found == expected else [f"found {found}, expected {expected}\n{played.errors}"]
    return wrong + ([] if played.exit_code == exit_code else [f"exit code {played.exit_code}, expected {exit_code}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
