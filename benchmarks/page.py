"""How soon report.html paints and can be used, and how large it is, beside an empty page in the same browser.

Usage: ``python -m benchmarks.page [--sizes 4x200 512x2000 4096x2000] [--scenario dtype] [--rounds 3]``. A job's black
boxes are written, judged and made a page of; headless Chromium opens it. ``first paint`` is the browser's own
performance entry, ``usable`` when the timeline is drawn, both in milliseconds from the begin of the navigation.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.tables import bench_table
from benchmarks.verify_boxes import SCENARIOS, Job, write_job
from simcoll.blackbox.gather import gather
from simcoll.cli.records import judged
from simcoll.reports.html_report import html_report
from simcoll.verifier.views.requested import charted
from tests.reports.browser import started

_EMPTY = "<!DOCTYPE html><html lang=en><title>empty</title><p>nothing</p>"
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
_USABLE = "performance.now()"


@dataclass(frozen=True, slots=True)
class Row:
    """One page: bytes, seconds to make it once the job is judged, milliseconds to paint and to be usable."""

    name: str
    bytes: int
    made: float
    paint: float
    usable: float


def main() -> None:
    """Measure every size, and the empty page; a table goes to stdout."""
    options = _options()
    console = Console()
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        pages = [_page(Path(folder), options.scenario, size) for size in options.sizes]
        empty = Path(folder) / "empty.html"
        empty.write_text(_EMPTY, encoding="utf-8")
        rows = [_opened(browser, name, path, made, options.rounds) for name, path, made in [("", empty, 0.0), *pages]]
    console.print(table(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.page", description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["4x200", "512x2000", "4096x2000"], metavar="RANKSxRECORDS")
    parser.add_argument("--scenario", choices=SCENARIOS, default="dtype")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _page(folder: Path, scenario: str, size: str) -> tuple[str, Path, float]:
    """A page, and how long it took to make it from a job that is judged."""
    ranks, records = map(int, size.split("x"))
    boxes = folder / size
    write_job(Job(scenario, ranks, records), boxes)
    evidence = gather([boxes])
    report, traces = judged(evidence)
    begin = time.perf_counter()
    text = html_report(report, charted(report, traces))
    made = time.perf_counter() - begin
    path = folder / f"{size}.html"
    path.write_text(text, encoding="utf-8")
    return f"{ranks:,} ranks x {records:,}", path, made


def _opened(browser: Any, name: str, path: Path, made: float, rounds: int) -> Row:
    """The best of some rounds, each in a fresh context."""
    paints, usable = [], []
    for _ in range(rounds):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
        page = context.new_page()
        page.goto(path.as_uri())
        if name:
            page.wait_for_selector("#timeline.ready", timeout=60_000)
        usable.append(page.evaluate(_USABLE))
        page.wait_for_function(f"() => {_FIRST_PAINT} > 0")
        paints.append(page.evaluate(_FIRST_PAINT))
        context.close()
    return Row(name or "empty page", path.stat().st_size, made, min(paints), min(usable))


def table(rows: Sequence[Row]) -> Table:
    """Bytes and times of each page, beside those of an empty one."""
    names = ("page", "bytes", "made in s", "first paint ms", "beside empty", "usable ms")
    made = bench_table("report.html in headless Chromium", *names, left=("page",))
    for row in rows:
        ratio = f"{row.paint / rows[0].paint:.1f}"
        made.add_row(row.name, f"{row.bytes:,}", f"{row.made:.2f}", f"{row.paint:.0f}", ratio, f"{row.usable:.0f}")
    return made


if __name__ == "__main__":
    main()
