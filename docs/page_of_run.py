"""The page that ``simcoll run`` writes of a real run that ends in findings, in a browser, to take pictures of.

Needs Chromium and playwright (the dependency group dev).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

_FINDINGS_EXIT = 3


@contextmanager
def page_of_run(script: str, program: str) -> Iterator[tuple[Browser, Path]]:
    """A browser, and report.html of a program on four Gloo ranks, run as ``script`` in a folder of its own.

    Ends the process with a message where there is no Chromium, or where the run does not end in findings.
    """
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        sys.exit("no chromium on the path; Debian's package chromium has it")
    with tempfile.TemporaryDirectory(prefix="s-") as name:
        folder = Path(name).resolve()
        _run(folder, script, program)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            yield browser, folder / "out" / "report.html"
            browser.close()


def _run(folder: Path, script: str, program: str) -> None:
    (folder / script).parent.mkdir(exist_ok=True)
    (folder / script).write_text(program, encoding="utf-8")
    simcoll = Path(sys.executable).with_name("simcoll")
    command = [str(simcoll), "run", "--out", "out", "--standalone", "--nproc-per-node", "4", script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    if done.returncode != _FINDINGS_EXIT:
        sys.exit(f"simcoll run {script} exited {done.returncode}, expected {_FINDINGS_EXIT}:\n{done.stderr}")
