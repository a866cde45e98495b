"""The pages of the rules: drawn, and the same in ``docs/rules``."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from simcoll.reports.rules import index_markdown, render_rule, render_rules_table, rule_markdown
from simcoll.verifier.findings.rules import RULES

PAGES = Path(__file__).parents[2] / "docs" / "rules"


def drawn(renderable: RenderableType) -> str:
    console = Console(file=StringIO(), width=80, no_color=True)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_table_has_every_code() -> None:
    text = drawn(render_rules_table())
    assert all(code in text for code in RULES)


@pytest.mark.parametrize("code", RULES)
def test_a_page_is_drawn_and_documented(code: str) -> None:
    text = drawn(render_rule(RULES[code]))
    assert all(heading in text for heading in ("What it means", "Why it is bad", "Example", "How to fix it"))
    assert (PAGES / f"{code}.md").read_text(encoding="utf-8") == rule_markdown(RULES[code])


def test_the_documented_list_is_the_rules() -> None:
    assert (PAGES / "README.md").read_text(encoding="utf-8") == index_markdown()
    assert {page.stem for page in PAGES.glob("SC*.md")} == set(RULES)
