"""How soon the four answers on a running job tell what happened to it: `top`, `status`, the metrics, and the report.

Eight real ranks over Gloo under `simcoll run`, in mode record: two collectives a step, or a small model under
DistributedDataParallel. Once the job runs, one rank hangs in its own code, is killed by SIGKILL, or is slow from then
on, and writes down when. One of the answers is asked again and again: `simcoll top --once --json`, `simcoll status`,
Prometheus (which scrapes `simcoll metrics` each second), `simcoll verify --json`. Its delay is the time from what
happened to the end of the first answer that names the rank and the kind; the start of the command, its patience and
all intervals are part of it. A job for each answer: commands that run beside each other would share the cores. After
that the other three are asked once each: *agree* counts the answers that tell the same. *wrong* counts answers that
blamed a rank before anything had happened, or another rank. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks.overhead import free_port, machine
from benchmarks.tables import WIDTH, bench_table

RANK_PROGRAM = Path(__file__).with_name("answers_rank.py")
PROGRAMS = ("calls", "ddp")
KINDS = ("hang", "killed", "slow")
RANKS, SPOILT = 8, 5
_LATE = 0.05
"""The share of time from which on `simcoll status` names a late rank."""

_RULES = {"SC201": "hang", "SC701": "killed"}
_LIMIT_SECONDS, _BETWEEN_SECONDS = 60.0, 0.05

Story: TypeAlias = "tuple[str, int] | None"
"""What happened, and to which rank; None for nothing."""

Sample: TypeAlias = tuple[str, Mapping[str, str], float]
"""Name, labels and value of a metric."""


def told_by_status(folder: Path) -> Story:
    """The line and the exit code of ``simcoll status``."""
    done = _simcoll("status", str(folder))
    found = re.search(r"\bin \S+ #\d+ .* for ranks? (\d+);", done.stdout)
    if done.returncode == 4 and found:
        return "hang", int(found[1])
    if done.returncode == 3 and (found := re.search(r"rank (\d+) was killed by SIGKILL", done.stdout)):
        return "killed", int(found[1])
    return _slow(done.stdout) if done.returncode == 0 else None


def told_by_top(folder: Path) -> Story:
    """The document of ``simcoll top --once --json``."""
    job = _document("top", "--once", "--json", str(folder))
    if job.get("motion") == "moving":
        return _slowest({one["rank"]: one["late"] or 0.0 for one in job["ranks"]})
    return _found(job.get("findings", ()))


def told_by_report(folder: Path) -> Story:
    """The document of ``simcoll verify --json``."""
    report = _document("verify", "--json", str(folder))
    return _found(report.get("findings", ())) or _slow(" ".join(report.get("notes", ())))


def told_by_metrics(samples: Sequence[Sample]) -> Story:
    """The metrics, from Prometheus or from ``simcoll metrics --once``."""
    for name, labels, _ in samples:
        if name == "simcoll_rank_findings" and labels["code"] in _RULES:
            return _RULES[labels["code"]], int(labels["rank"])
    if any(labels.get("state") == "moving" and value for _, labels, value in samples):
        return _slowest({int(of["rank"]): value for name, of, value in samples if name == "simcoll_rank_late_ratio"})
    return None


def told_by_prometheus(port: int) -> Story:
    """What Prometheus has scraped."""
    url = f"http://127.0.0.1:{port}/api/v1/query?query=%7B__name__%3D~%22simcoll_.*%22%7D"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:
        return None
    finally:
        time.sleep(_BETWEEN_SECONDS)
    return told_by_metrics([(one["metric"]["__name__"], one["metric"], float(one["value"][1])) for one in found])


def told_once(folder: Path) -> Story:
    """The document of ``simcoll metrics --once --json``."""
    metrics = _document("metrics", "--once", "--json", str(folder)).get("metrics", {})
    return told_by_metrics([(name, one["labels"], one["value"]) for name, some in metrics.items() for one in some])


def _simcoll(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "simcoll", *arguments], capture_output=True, text=True, check=False)


def _document(*arguments: str) -> Mapping[str, Any]:
    text = _simcoll(*arguments).stdout
    document: Mapping[str, Any] = json.loads(text) if text.startswith("{") else {}
    return document


def _found(findings: Sequence[Mapping[str, Any]]) -> Story:
    for one in findings:
        if one["code"] in _RULES and one["culprits"]:
            return _RULES[one["code"]], one["culprits"][0]
    return None


def _slow(text: str) -> Story:
    found = re.search(r"the others wait for rank (\d+) \d+ % of the time", text)
    return ("slow", int(found[1])) if found else None


def _slowest(late: Mapping[int, float]) -> Story:
    rank = max(late, key=lambda rank: late[rank], default=None)
    return None if rank is None or late[rank] < _LATE else ("slow", rank)


ANSWERS: Mapping[str, Callable[[Path], Story]] = {
    "top": told_by_top,
    "status": told_by_status,
    "metrics": told_once,
    "report": told_by_report,
}
"""The four answers, of the metrics those of one look."""

Ask = Callable[[], Story]


@dataclass(frozen=True, slots=True)
class Answered:
    """The seconds from what happened to the first right answer, how often it was asked since and how often it was
    wrong, and which of the other answers told something else then.
    """

    program: str
    kind: str
    answer: str
    seconds: float
    asked: int
    wrong: int
    others: tuple[str, ...]


@contextlib.contextmanager
def job_of(program: str, kind: str, folder: Path) -> Iterator[Path]:
    """Eight ranks; ends them. Gives the folder in which they record."""
    out = folder / "out"
    out.mkdir()
    command = [sys.executable, "-m", "simcoll", "run", "--mode", "record", "--plain", "--out", str(out)]
    command += ["--nproc-per-node", str(RANKS), str(RANK_PROGRAM), program, kind, str(SPOILT), str(folder)]
    with (folder / "log").open("w") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield out
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait()


@contextlib.contextmanager
def prometheus_of(out: Path, folder: Path) -> Iterator[int]:
    """A Prometheus that scrapes the job's metrics each second; gives its port."""
    own, target = free_port(), free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: simcoll, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    commands = [
        [sys.executable, "-m", "simcoll", "metrics", str(out), "--listen", f"127.0.0.1:{target}"],
        [
            str(shutil.which("prometheus")),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
    ]
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands]
    try:
        yield own
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def answered(program: str, kind: str, answer: str) -> Answered | None:
    """Ask one answer of a job of its own until it is right, and then the others; None where it never is."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="simcoll-bench-")))
        out = stack.enter_context(job_of(program, kind, folder))
        asks: dict[str, Ask] = {name: functools.partial(ask, out) for name, ask in ANSWERS.items()}
        with contextlib.ExitStack() as scraping:
            ask = asks[answer]
            if answer == "metrics":
                ask = functools.partial(told_by_prometheus, scraping.enter_context(prometheus_of(out, folder)))
            while not (folder / "ready").exists():
                time.sleep(_BETWEEN_SECONDS)
            found = _first_right(ask, kind, folder)
        if found is None:
            return None
        ended_ns, asked, wrong = found
        others = [name for name, ask in asks.items() if name != answer and ask() != (kind, SPOILT)]
        happened = int((folder / "happened").read_text())
        return Answered(program, kind, answer, (ended_ns - happened) / 1e9, asked, wrong, tuple(others))


def _first_right(ask: Ask, kind: str, folder: Path) -> tuple[int, int, int] | None:
    """The time of the first right answer, the answers since it happened, and the wrong ones."""
    ask()  # the first one reads the command's modules from disk
    spoil = threading.Timer(random.uniform(0.5, 2.5), (folder / "go").touch)
    spoil.start()
    asked, wrong, limit = 0, 0, time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < limit:
        happened, told, ended_ns = (folder / "happened").exists(), ask(), time.time_ns()
        asked += (folder / "happened").exists()
        if told == (kind, SPOILT) and (folder / "happened").exists():
            return ended_ns, asked, wrong
        # A busy machine makes ranks late as well; that is no finding.
        wrong += told is not None and told[0] != "slow" and (not happened or told != (kind, SPOILT))
    return None


def table_of(rows: Sequence[Answered]) -> Table:
    """A row for each kind, with the delay of each answer: the median and, of several jobs, the longest."""
    made = bench_table(
        "seconds from what happened to the first right answer",
        "program",
        "kind",
        *ANSWERS,
        "agree",
        "wrong",
        left=("program", "kind"),
    )
    for program, kind in dict.fromkeys((one.program, one.kind) for one in rows):
        mine = [one for one in rows if (one.program, one.kind) == (program, kind)]
        cells = []
        for name in ANSWERS:
            seconds = sorted(one.seconds for one in mine if one.answer == name)
            most = f"-{seconds[-1]:.2f}" if len(seconds) > 1 else ""
            cells.append(f"{statistics.median(seconds):.2f}{most}" if seconds else "")
        agree = len(ANSWERS) - max(len(one.others) for one in mine)
        made.add_row(program, kind, *cells, f"{agree} of {len(ANSWERS)}", str(sum(one.wrong for one in mine)))
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--answers", nargs="+", choices=tuple(ANSWERS), default=tuple(ANSWERS))
    parser.add_argument("--rounds", type=int, default=1, help="jobs of each kind for each answer (default: 1)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    if "metrics" in options.answers and shutil.which("prometheus") is None:
        sys.exit("bench-answers: no prometheus here (apt-get install prometheus), or leave metrics out of --answers")
    progress, rows = Console(stderr=True), []
    for _ in range(options.rounds):
        for program in options.programs:
            for kind in options.kinds:
                for answer in options.answers:
                    row = answered(program, kind, answer)
                    told = (
                        "no right answer"
                        if row is None
                        else f"{row.seconds:.2f} s, {', '.join(row.others) or 'none'} otherwise"
                    )
                    progress.print(f"{program}, {kind}, {answer}: {told}, load {os.getloadavg()[0]:.1f}", style="dim")
                    rows += [] if row is None else [row]
    if options.json:
        answers = [asdict(row) for row in rows]
        print(json.dumps({"schema": "simcoll.answers/1", "machine": machine(), "answers": answers}, indent=2))
    else:
        Console(width=WIDTH).print(table_of(rows))


if __name__ == "__main__":
    main()
