"""Take the picture in the tutorial anew, from a real run of the program that the page itself shows."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import FloatRect, Page, ViewportSize

from docs.page_of_run import page_of_run

DOCS = Path(__file__).resolve().parent
TUTORIAL = DOCS / "tutorial.md"
PICTURE = DOCS / "images" / "tutorial-timeline.png"
SCRIPT = "train.py"
SIZE = ViewportSize(width=1160, height=2000)


def main() -> None:
    """Run, open, take."""
    with page_of_run(SCRIPT, shown_program(SCRIPT)) as (browser, report):
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.goto(report.as_uri())
        take(page)


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
    main()
