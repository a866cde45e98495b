"""Every block of every page is run: README, CONTRIBUTING and all of docs, as page_player.py says.

One page: ``make test ARGS="-k 'documents and preflight.md'"``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page_player import NEEDS, missing, play
from tests.support.pages import Block, PageError, read_page

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "rules"
PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if not any(part.startswith("_") for part in path.relative_to(ROOT).parts) and path.parent != RULES
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> tuple[Block, ...]:
    try:
        return read_page(page)
    except PageError:
        return ()  # playing it says so


def pages() -> list[object]:
    return [
        pytest.param(page, id=name(page), marks=[pytest.mark.slow, pytest.mark.gloo] if blocks(page) else [])
        for page in PAGES
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", pages())
def test_page(page: Path) -> None:
    """A failure names the lines of the page."""
    faults = play(page)
    if faults:
        pytest.fail("\n\n".join(f"{name(page)}:{fault.line}: {fault.message}" for fault in faults), pytrace=False)


@pytest.mark.parametrize("page", sorted(RULES.glob("SC*.md")), ids=lambda page: page.stem)
def test_the_example_of_a_rule_is_python(page: Path) -> None:
    """A fragment, whose tensors and groups the page only names; test_rule_examples.py runs it."""
    [block] = blocks(page)
    assert block.language == "python"
    compile(block.text, name(page), "exec")


NEEDY = [(page, block) for page in PAGES for block in blocks(page) if block.needs]


@pytest.mark.parametrize(
    ("page", "block"), NEEDY, ids=[f"{name(page)}:{block.line}-{'-'.join(block.needs)}" for page, block in NEEDY]
)
def test_a_block_that_needs_something_finds_it(page: Path, block: Block) -> None:
    """So that the tests' summary says what was not played here, and why."""
    assert set(block.needs) <= set(NEEDS)
    if lacks := missing(block):
        pytest.skip(f"{name(page)}:{block.line} is not played: no {' and no '.join(lacks)} here")
