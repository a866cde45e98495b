"""Validates documents: reports by their schema, SARIF by the schema of its standard."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from simcoll.reports.json_report import json_report, json_schema
from simcoll.verifier.findings.finding import Report

_SARIF = Path(__file__).parents[1] / "data" / "sarif-2.1.0-rtm.5.json"


def valid_report(report: Report) -> dict[str, object]:
    """A report as its JSON document, which is valid under the schema that is shipped."""
    document = json_report(report)
    check_report(json.loads(json.dumps(document)))
    return document


def check_report(document: object) -> None:
    """Fail where a document is not what the schema of reports says, or has what the schema does not know."""
    _reports().validate(document)


def check_sarif(document: object) -> None:
    """Fail where a document is not valid SARIF 2.1.0."""
    _sarif().validate(document)


@cache
def _reports() -> Any:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


@cache
def _sarif() -> Any:
    return jsonschema.Draft4Validator(json.loads(_SARIF.read_text(encoding="utf-8")))
