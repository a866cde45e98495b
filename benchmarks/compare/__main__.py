"""``python -m benchmarks.compare``: runs all programs under all tools, and writes the results."""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import compare
from benchmarks.compare.judged import judged
from benchmarks.compare.programs import CORPORA, Program
from benchmarks.compare.tools import CUT_OFF_SECONDS, GROUP_SECONDS, Run, Worker, kept
from benchmarks.overhead import machine

DATA = Path(__file__).parents[1] / "data"
RESULTS = {"planted": DATA / "comparison.json", "real": DATA / "real_bugs.json"}


def run_all(programs: Sequence[Program], folder: Path, options: argparse.Namespace, progress: Console) -> None:
    """Every program under every tool, several programs at a time; what came of it is kept under ``runs``."""
    waiting: queue.SimpleQueue[Program] = queue.SimpleQueue()
    # By name, so that faulty and correct ones, which take unequally long, are mixed.
    for program in sorted(programs, key=lambda one: one.name):
        waiting.put(program)
    started = [Worker(folder, options.timeout, dry=options.corpus == "real") for _ in range(options.workers)]
    threads = [threading.Thread(target=_work, args=[waiting, folder, worker, progress]) for worker in started]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _work(waiting: queue.SimpleQueue[Program], folder: Path, worker: Worker, progress: Console) -> None:
    try:
        while True:
            program = waiting.get_nowait()
            for run in worker.runs(program):
                run.keep(folder / "runs")
            progress.print(f"{program.name}: done, {waiting.qsize()} to go", style="dim")
    except queue.Empty:
        pass
    finally:
        worker.close()


def document(programs: Sequence[Program], folder: Path, timeout: float) -> dict[str, object]:
    """What was found, with what it was measured on."""
    rows = []
    for program in programs:
        runs = [kept(path) for path in sorted((folder / "runs").glob(f"*/{program.name}.json"))]
        rows += [judged(program, _with_launcher(program, run, folder)).to_json() for run in runs]
    limits = {"group_timeout_s": timeout, "cut_off_s": CUT_OFF_SECONDS}
    began = datetime.fromtimestamp((folder / "began").stat().st_mtime, UTC)
    return {
        "schema": "simcoll.comparison/1",
        "date": began.date().isoformat(),
        "machine": machine(),
        **limits,
        "programs": [
            {"name": one.name, "code": one.code, "culprits": one.culprits, "ranks": one.ranks} for one in programs
        ],
        "runs": rows,
    }


def _with_launcher(program: Program, run: Run, folder: Path) -> Run:
    """Where a rank fails by itself, what torchrun's own summary says: which was first, and its exit code."""
    if program.code != "SC701" or run.tool_exit is not None or not any(run.exit_codes):
        return run
    account = json.loads((folder / "jobs" / run.tool / run.program / "launch.json").read_text())
    first = min((one for one in account["ranks"] if one["exit_code"]), key=lambda one: one["ended_ns"])
    said = f"\nfirst failure: rank {first['rank']}, exit code {first['exit_code']}\n"
    return replace(run, judgement=run.judgement + said)


def main() -> None:
    """Run, judge, write."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.compare",
        description=compare.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("build/compare"), help="where raw outputs go")
    parser.add_argument("--corpus", choices=CORPORA, default="planted", help="which programs (default: planted)")
    parser.add_argument("--timeout", type=int, default=GROUP_SECONDS, help="of groups, in seconds (default: 10)")
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="only these (their result is not written)")
    parser.add_argument("--workers", type=int, default=3, help="programs at a time (default: 3)")
    parser.add_argument("--judge-only", action="store_true", help="judge anew what a run before left in --out")
    options = parser.parse_args()
    progress = Console(stderr=True)
    options.out /= options.corpus
    programs = [one for one in CORPORA[options.corpus]() if not options.programs or one.name in options.programs]
    if not options.judge_only:
        shutil.rmtree(options.out, ignore_errors=True)
        options.out.mkdir(parents=True)
        (options.out / "began").write_text(f"load {os.getloadavg()}\n")
        run_all(programs, options.out, options, progress)
    found = json.dumps(document(programs, options.out, options.timeout), indent=1)
    target = options.out / "comparison.json" if options.programs else RESULTS[options.corpus]
    target.write_text(found + "\n")
    progress.print(f"written: {target}")


if __name__ == "__main__":
    main()
