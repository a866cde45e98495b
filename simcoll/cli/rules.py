"""``simcoll rules``: list the findings, or explain one."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from simcoll.cli.arguments import add_output_arguments
from simcoll.cli.output import Output
from simcoll.errors import BAD_INPUT, OK
from simcoll.reports.rules import render_rule, render_rules_table
from simcoll.simulation.library import scenario_path, scenario_text
from simcoll.verifier.findings.finding import Rule
from simcoll.verifier.findings.rules import RULES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``rules`` to its parser."""
    add_output_arguments(parser)
    parser.add_argument("code", metavar="CODE", nargs="?", help="a finding's code, such as SC104, or its name")


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll rules``; the exit code of the contract."""
    return show_rules(options.code, Output(json=options.json, plain=options.plain))


def show_rules(code: str | None, output: Output) -> int:
    """List the rules, or show the page of one."""
    if code is None:
        output.render(render_rules_table(), lambda: [_page(rule) for rule in RULES.values()])
        return OK
    rule = RULES.get(code.upper()) or next((rule for rule in RULES.values() if rule.name == code.lower()), None)
    if rule is None:
        expected = f"expected one of {', '.join(RULES)}, or the name of one"
        return output.refuse(BAD_INPUT, f"unknown code {code!r}: {expected}")
    output.render(render_rule(rule, scenario_text(rule.code)), lambda: _page(rule))
    return OK


def _page(rule: Rule) -> dict[str, object]:
    path = scenario_path(rule.code)
    texts = {name: value for name, value in asdict(rule).items() if isinstance(value, str)}
    return {**texts, "severity": rule.severity.value, "scenario": None if path is None else str(path)}
