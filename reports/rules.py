"""Rules as pages: for the terminal, and as Markdown for ``docs/rules``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Column
from rich.text import Text

from simcoll.reports.tables import Rows
from simcoll.verifier.findings.finding import Rule
from simcoll.verifier.findings.rules import RULES


def render_rule(rule: Rule, scenario: str = "") -> RenderableType:
    """The page of one rule: its meaning, its harm, an example, a scenario to play, the fix.

    ``scenario`` is the text of its scenario file; empty where there is none.
    """
    body: list[RenderableType] = []
    for heading, content in _sections(rule, scenario):
        body += [Text(heading, "bold"), Padding(content, (0, 0, 1, 2))]
    body += [Text("In short", "bold"), Padding(Text(rule.advice), (0, 0, 0, 2))]
    return Panel(Group(*body), title=f"{rule.code} {rule.name} ({rule.severity.value})", title_align="left")


def _sections(rule: Rule, scenario: str) -> list[tuple[str, RenderableType]]:
    example = Syntax(rule.example, "python", theme="ansi_dark", background_color="default", word_wrap=True)
    text = Syntax(scenario.rstrip(), "toml", theme="ansi_dark", background_color="default", word_wrap=True)
    played: list[tuple[str, RenderableType]] = [(f"As a scenario: {command_of(rule)}", text)] if scenario else []
    if rule.unplayed:
        played = [("As a scenario", Text(f"A scenario cannot play it: {rule.unplayed}."))]
    return [
        ("What it means", Text(rule.means)),
        ("Why it is bad", Text(rule.harm)),
        ("Example", example),
        *played,
        ("How to fix it", Text(rule.remedy)),
    ]


def command_of(rule: Rule) -> str:
    """The command that plays a rule's scenario, from any folder."""
    return f"simcoll simulate {rule.code}"


def render_rules_table() -> RenderableType:
    """All rules: code, name, severity, advice."""
    table = Rows(*(Column(name, no_wrap=name != "advice") for name in ("code", "name", "severity", "advice")))
    for rule in RULES.values():
        table.add_row(rule.code, rule.name, rule.severity.value, Text(rule.advice))
    return table


def rule_markdown(rule: Rule) -> str:
    """The page of one rule as Markdown."""
    played = f"`{command_of(rule)}` plays it on simulated ranks. "
    if rule.unplayed:
        played = f"A scenario cannot play it: {rule.unplayed}. "
    return (
        f"# {rule.code} {rule.name}\n\nSeverity: {rule.severity.value}\n\n## What it means\n\n{rule.means}\n\n"
        f"## Why it is bad\n\n{rule.harm}\n\n## Example\n\nOn every rank:\n\n```python\n{rule.example}\n```\n\n"
        f"{played}The gallery has [a program and its report]"
        f"(../gallery.md#{anchor(rule)}).\n\n"
        f"## How to fix it\n\n{rule.remedy}\n\n{rule.advice}\n"
    )


def anchor(rule: Rule) -> str:
    """Returns the anchor of a rule's entry in the gallery, for links."""
    return f"{rule.code}-{rule.name}".lower()


def rule_text(rule: Rule) -> str:
    """The page of one rule as plain text."""
    example = "\n".join(f"    {line}" for line in rule.example.splitlines())
    return f"{rule.means}\n\n{rule.harm}\n\nExample, on every rank:\n\n{example}\n\n{rule.remedy}\n\n{rule.advice}"


def index_markdown() -> str:
    """The list of rules as Markdown."""
    rows = [f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity.value} |" for rule in RULES.values()]
    return "# Rules\n\n| code | name | severity |\n|---|---|---|\n" + "\n".join(rows) + "\n"
