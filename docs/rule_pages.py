"""Writes docs/rules anew from the rules: ``python docs/rule_pages.py``."""

from __future__ import annotations

from pathlib import Path

from simcoll.reports.rules import index_markdown, rule_markdown
from simcoll.verifier.findings.rules import RULES

FOLDER = Path(__file__).with_name("rules")


def main() -> None:
    """One page a rule, and the list."""
    FOLDER.mkdir(exist_ok=True)
    for rule in RULES.values():
        (FOLDER / f"{rule.code}.md").write_text(rule_markdown(rule), encoding="utf-8")
    (FOLDER / "README.md").write_text(index_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
