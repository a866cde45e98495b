"""The system's Chromium, headless, and what it says of a page; tests skip with a reason where it is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
AXE = ROOT / "reports" / "page" / "vendor" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ENDED_BY_ITSELF = 15_000
"""Milliseconds after which a page that is not ready is broken; never what is measured."""


def chromium() -> str:
    """The browser's executable."""
    pytest.importorskip("playwright", reason="playwright is not installed (the dependency group dev has it)")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no chromium on the path (Debian's package chromium has it)")
    return found


@contextmanager
def started() -> Iterator[Any]:
    """A browser."""
    executable = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container's root has no sandbox to give, and a container little shared memory; the pages are our own.
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=executable, args=options)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page that was opened from a file, and what it complained of."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def view(self) -> tuple[float, ...]:
        """The window of the timeline: first and last column, first and last row."""
        return tuple(map(float, self.page.get_attribute(".timeline", "data-view").split()))

    def dialog(self, dialog: Any) -> None:
        """A page of ours opens none."""
        self.complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def settled(self) -> None:
        """Let two frames pass, after which what was asked for is drawn."""
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def box(self) -> dict[str, float]:
        """Where the canvas is in the window."""
        canvas = self.page.locator("canvas")
        canvas.scroll_into_view_if_needed()
        box: dict[str, float] = canvas.bounding_box()
        return box

    def pixels(self) -> int:
        """How many different colours the canvas has."""
        found: int = self.page.evaluate(
            "() => { const c = document.querySelector('canvas');"
            "const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
            "return new Set(d).size; }"
        )
        return found


@contextmanager
def opened(browser: Any, path: Path, init: str = "", **context: Any) -> Iterator[Opened]:
    """A page in a context of its own, with the network off, ready to be used; ``init`` runs before its scripts."""
    with_size = {"viewport": {"width": 1280, "height": 900}, **context}
    made = browser.new_context(offline=True, **with_size)
    page = made.new_page()
    found = Opened(page)
    page.on("console", lambda message: found.complaints.append(message.text))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("dialog", found.dialog)
    page.on("request", lambda request: found.requests.append(request.url))
    page.expose_function("planted", lambda where: found.complaints.append(f"planted {where}"))
    page.add_init_script(init)
    page.goto(path.as_uri())
    if page.query_selector(".timeline") is not None:
        page.wait_for_selector(".timeline.ready", timeout=ENDED_BY_ITSELF)
        found.settled()
    yield found
    made.close()
