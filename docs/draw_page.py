"""Take the pictures of report.html in the documentation anew, from a real run: the planted bug on four Gloo ranks."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, ViewportSize

from docs.page_of_run import page_of_run

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/planted_bug.py"
IMAGES = ROOT / "docs" / "images"
SIZE = ViewportSize(width=1160, height=1010)


def main() -> None:
    """Run, open, take: once in light, once in dark."""
    with page_of_run(SCRIPT, (ROOT / SCRIPT).read_text(encoding="utf-8")) as (browser, page):
        take(browser, page, "light")
        take(browser, page, "dark")


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
    main()
