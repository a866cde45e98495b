"""Take the pictures of report.html in the documentation anew, from a real run: the planted bug on four Gloo ranks.

Needs Chromium and playwright (the dependency group dev). The page is the one that ``simcoll run`` writes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/planted_bug.py"
IMAGES = ROOT / "docs" / "images"
FINDINGS_EXIT = 3
SIZE = ViewportSize(width=1160, height=1010)


def main() -> int:
    """Run, open, take; the exit code says whether the run ended as it has to."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        print("draw_page: no chromium on the path; Debian's package chromium has it", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        done = run(Path(folder).resolve())
        if done.returncode != FINDINGS_EXIT:
            print(f"draw_page: simcoll run exited {done.returncode}, expected {FINDINGS_EXIT}:\n{done.stderr}")
            return 1
        page = next(Path(folder).glob("out/report.html"))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            take(browser, page, "light")
            take(browser, page, "dark")
            browser.close()
    return 0


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """The planted bug under ``simcoll run`` in a folder of its own."""
    script = folder / SCRIPT
    script.parent.mkdir()
    shutil.copy(ROOT / SCRIPT, script)
    simcoll = Path(sys.executable).with_name("simcoll")
    command = [str(simcoll), "run", "--out", "out", "--standalone", "--nproc-per-node", "4", SCRIPT]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)


def take(browser: Browser, page: Path, scheme: str) -> None:
    """One picture, with the timeline drawn."""
    context = browser.new_context(viewport=SIZE, color_scheme="dark" if scheme == "dark" else "light")
    opened = context.new_page()
    opened.goto(page.as_uri())
    opened.wait_for_selector("#timeline.ready")
    # The run's own folder says nothing to who looks at the picture.
    opened.evaluate(
        "folder => { for (const one of document.querySelectorAll('.source'))"
        " one.textContent = one.textContent.replace(folder, ''); }",
        f"{page.parent.parent}/",
    )
    opened.wait_for_timeout(300)
    IMAGES.mkdir(exist_ok=True)
    opened.screenshot(path=IMAGES / f"report-{scheme}.png")
    context.close()


if __name__ == "__main__":
    sys.exit(main())
