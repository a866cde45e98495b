"""The rules: every code of the contract has its page."""

from __future__ import annotations

import ast

import pytest

from simcoll.verifier.findings.finding import Severity
from simcoll.verifier.findings.rules import RULES

CONTRACT = {
    "SC101": "op-mismatch",
    "SC102": "size-mismatch",
    "SC103": "dtype-mismatch",
    "SC104": "reduce-op-mismatch",
    "SC105": "root-mismatch",
    "SC106": "split-mismatch",
    "SC107": "device-mismatch",
    "SC108": "layout-mismatch",
    "SC109": "shape-mismatch",
    "SC110": "coalesced-contents-mismatch",
    "SC201": "missing-rank",
    "SC202": "call-skipped",
    "SC203": "order-swapped",
    "SC204": "deadlock-cycle",
    "SC301": "p2p-size-mismatch",
    "SC302": "p2p-dtype-mismatch",
    "SC303": "p2p-tag-mismatch",
    "SC304": "p2p-unmatched",
    "SC305": "message-race",
    "SC401": "group-membership-mismatch",
    "SC402": "non-member-call",
    "SC501": "work-never-waited",
    "SC502": "buffer-changed-in-flight",
    "SC503": "buffers-overlap-in-flight",
    "SC504": "ddp-parameter-mismatch",
    "SC601": "invalid-argument",
    "SC701": "rank-failed",
    "SC702": "rank-exited-early",
    "SC801": "straggler",
    "SC901": "non-finite-input",
    "SC902": "replicas-differ",
    "SC903": "wrong-result",
    "SC904": "parameters-drifted",
    "SC905": "same-data",
    "SC906": "random-state",
}


def test_codes_and_names_are_those_of_the_contract() -> None:
    assert {code: rule.name for code, rule in RULES.items()} == CONTRACT


@pytest.mark.parametrize("code", CONTRACT)
def test_every_page_is_complete(code: str) -> None:
    rule = RULES[code]
    ast.parse(rule.example)
    for text in (rule.means, rule.harm, rule.remedy):
        assert len(text) > 40
        assert text.endswith((".", "."))
    assert "\n" not in rule.advice
    assert rule.advice.endswith(".")


def test_what_is_only_a_warning() -> None:
    warnings = {code for code, rule in RULES.items() if rule.severity is Severity.WARNING}
    assert warnings == {"SC305", "SC501", "SC801", "SC905"}
