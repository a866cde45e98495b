"""Take the picture in the tutorial anew, from a real run of the program that the page itself shows.

Needs Chromium and playwright (the dependency group dev). The page is the one that ``simcoll run`` writes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import FloatRect, Page, ViewportSize, sync_playwright

DOCS = Path(__file__).resolve().parent
TUTORIAL = DOCS / "tutorial.md"
PICTURE = DOCS / "images" / "tutorial-timeline.png"
FINDINGS_EXIT = 3
SIZE = ViewportSize(width=1160, height=2000)


def main() -> int:
    """Run, open, take; the exit code says whether the run ended as it has to."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        print("draw_tutorial: no chromium on the path; Debian's package chromium has it", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        done = run(Path(folder).resolve())
        if done.returncode != FINDINGS_EXIT:
            print(f"draw_tutorial: simcoll run exited {done.returncode}, expected {FINDINGS_EXIT}:\n{done.stderr}")
            return 1
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
            page.goto((Path(folder).resolve() / "out" / "report.html").as_uri())
            take(page)
            browser.close()
    return 0


def shown_program(name: str) -> str:
    """The program that the tutorial has its reader save under this name."""
    block = re.search(
        rf"^<!-- file: {re.escape(name)} -->\n```python\n(.*?)^```$",
        TUTORIAL.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    if block is None:
        raise LookupError(f"{TUTORIAL.name} has no block for {name}")
    return block[1]


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """The tutorial's program under ``simcoll run`` in a folder of its own."""
    (folder / "train.py").write_text(shown_program("train.py"), encoding="utf-8")
    simcoll = Path(sys.executable).with_name("simcoll")
    command = [str(simcoll), "run", "--out", "out", "--standalone", "--nproc-per-node", "4", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)


def take(page: Page) -> None:
    """The timeline where the finding is, without the details of a call, which would lie above the other ranks."""
    page.wait_for_selector("#timeline.ready")
    page.get_by_text("Show in the timeline").click()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(1000)
    PICTURE.parent.mkdir(exist_ok=True)
    page.screenshot(path=PICTURE, clip=timeline(page))


def timeline(page: Page) -> FloatRect:
    """From the timeline's heading to its key."""
    top = page.locator("#timeline-title").bounding_box()
    end = page.locator("#timeline-keys").bounding_box()
    if top is None or end is None:
        raise LookupError("report.html has no timeline")
    return FloatRect(x=0, y=top["y"] - 12, width=SIZE["width"], height=end["y"] + end["height"] - top["y"] + 24)


if __name__ == "__main__":
    sys.exit(main())
