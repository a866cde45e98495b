"""The report as SARIF 2.1.0 (OASIS), so that a code host shows each finding on the line that caused it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import quote

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Source
from simcoll.core.text import safe
from simcoll.reports.causes import advice_document
from simcoll.reports.rules import rule_markdown, rule_text
from simcoll.verifier.findings.describe import advice_of, call_text, leading, where_text
from simcoll.verifier.findings.finding import Finding, Report, Rule, Side, Verdict
from simcoll.verifier.findings.rules import RULES

VERSION = "2.1.0"
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "simcollFinding/v1"
_ROOT = "SRCROOT"
_LEVELS = {"error": "error", "warning": "warning"}
_OUTCOMES = {
    Verdict.OK: "nothing wrong",
    Verdict.FINDINGS: "the ranks disagree, or something is suspicious",
    Verdict.FAILED: "the program failed",
}


def sarif_report(report: Report, exit_code: int, root: Path) -> dict[str, object]:
    """A SARIF log of one run. Files below ``root`` (absolute) are given relative to it, as SRCROOT.

    ``exit_code`` is that of the command that makes the report.
    """
    places = _Places(PurePosixPath(root))
    return {"$schema": SCHEMA, "version": VERSION, "runs": [_run(report, exit_code, places)]}


def _run(report: Report, exit_code: int, places: _Places) -> dict[str, object]:
    seen: Counter[str] = Counter()
    return {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": f"file://{quote(str(places.root)).rstrip('/')}/"}},
        "invocations": [_invocation(report, exit_code)],
        "results": [_result(finding, places, seen) for finding in report.findings],
        "properties": {
            "verdict": report.verdict.value,
            "worldSize": report.world_size,
            "mode": report.mode,
            "agreed": report.agreed,
            **({} if report.advice is None else {"advice": advice_document(report.advice)}),
        },
    }


def _driver() -> dict[str, object]:
    home = documentation()
    driver: dict[str, object] = {
        "name": "simcoll",
        "version": metadata.version("simcoll"),
        "shortDescription": {"text": "Proves that the ranks of a torch.distributed job agree."},
        "rules": [_rule(rule, home) for rule in RULES.values()],
    }
    return driver | ({"informationUri": home} if home else {})


def documentation() -> str:
    """The address of the project's pages, as its own metadata says; empty where they name none."""
    for entry in metadata.metadata("simcoll").get_all("Project-URL") or ():
        label, _, address = entry.partition(",")
        if label.strip().lower() == "documentation":
            return str(address).strip().rstrip("/")
    return ""


def _rule(rule: Rule, home: str) -> dict[str, object]:
    described: dict[str, object] = {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": _message(f"{rule.name}: {rule.advice}"),
        "fullDescription": _message(rule.means),
        "help": {**_message(rule_text(rule)), "markdown": _braced(rule_markdown(rule))},
        "defaultConfiguration": {"level": _LEVELS[rule.severity.value]},
        "properties": {"tags": ["distributed", "collectives"]},
    }
    return described | ({"helpUri": f"{home}/rules/{rule.code}"} if home else {})


def _invocation(report: Report, exit_code: int) -> dict[str, object]:
    return {
        "executionSuccessful": True,
        "exitCode": exit_code,
        "exitCodeDescription": _OUTCOMES[report.verdict],
        "toolExecutionNotifications": [{"level": "note", "message": _message(note)} for note in report.notes],
    }


def _result(finding: Finding, places: _Places, seen: Counter[str]) -> dict[str, object]:
    at = _locations(finding.sides, finding, places)
    related: list[dict[str, object]] = at[1:]
    if (before := finding.came_apart) is not None:
        related += _locations(before.sides, finding, places, f"came apart at collective {before.sequence}: ")
    if (parted := finding.parted) is not None:
        said = ", ".join(f"{ranks_text(ranks)} {did}" for ranks, did in parted.sides)
        message = _message(f"ranks parted here: {said}")
        related.insert(0, {"physicalLocation": places.physical(parted.source), "message": message})
    fingerprint = _fingerprint(finding, places)
    seen[fingerprint] += 1
    return {
        "ruleId": finding.code,
        "ruleIndex": list(RULES).index(finding.code),
        "kind": "fail",
        "level": _LEVELS[finding.severity.value],
        "message": _message(sentence(finding)),
        "locations": at[:1] or [_nowhere(finding)],
        "relatedLocations": [{"id": number, **location} for number, location in enumerate(related, 1)],
        "stacks": _stacks(finding, places),
        "partialFingerprints": {FINGERPRINT: f"{fingerprint}:{seen[fingerprint]}"},
        "properties": _properties(finding),
    }


def sentence(finding: Finding) -> str:
    """Returns the problem, the culprits and the advice: the message stands alone on a code host."""
    culprits = f" Culprits: {ranks_text(finding.culprits)}." if finding.culprits else ""
    where = f" In {place}." if (place := where_text(finding)) else ""
    return f"{finding.message}.{where}{culprits} {advice_of(finding)}"


def _properties(finding: Finding) -> dict[str, object]:
    return {
        "ranks": list(finding.ranks),
        "culprits": list(finding.culprits),
        "group": None if finding.group is None else finding.group.name,
        "sequence": finding.sequence,
        "step": None if finding.step is None else finding.step.number,
        "unknown": list(finding.unknown),
    }


def _locations(sides: Sequence[Side], finding: Finding, places: _Places, when: str = "") -> list[dict[str, object]]:
    """Each side's lines, the culprits' first."""
    return [
        {
            "physicalLocation": places.physical(leading(sides, stated.source)),
            "message": _message(f"{when}{ranks_text(side.ranks)}: {_said(side, finding)}"),
        }
        for side in sorted(sides, key=finding.blames, reverse=True)
        for stated in side.sources
        if stated.source.file
    ]


def _stacks(finding: Finding, places: _Places) -> list[dict[str, object]]:
    """The stack of each line whose callers are known, innermost first."""
    return [
        {
            "message": _message(f"{ranks_text(side.ranks)}: {_said(side, finding)}"),
            "frames": [
                {"location": {"physicalLocation": places.physical(one), "message": _message(one.function)}}
                for one in stated.source.stack
            ],
        }
        for side in finding.sides
        for stated in side.sources
        if stated.source.callers
    ]


def _said(side: Side, finding: Finding) -> str:
    said = [] if side.call is None else [call_text(side.call, finding.group)]
    return "; ".join([*said, *([side.note] if side.note else [])]) or "made no call"


def _nowhere(finding: Finding) -> dict[str, object]:
    """A finding without a line belongs to its process group, or to the job."""
    name = "job" if finding.group is None else finding.group.description or finding.group.name
    return {"logicalLocations": [{"name": safe(name), "kind": "resource"}]}


def _fingerprint(finding: Finding, places: _Places) -> str:
    """Returns a hash that identifies a bug across runs: without ranks and line numbers, which differ between runs."""
    lines = {
        (places.name(stated.source.file), stated.source.function, stated.source.code.strip())
        for side in finding.sides
        for stated in side.sources
    }
    group = "" if finding.group is None else finding.group.description
    text = json.dumps([finding.code, group, sorted(finding.differing), sorted(lines)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _message(text: str) -> dict[str, object]:
    return {"text": _braced(text)}


def _braced(text: str) -> str:
    """Braces enclose placeholders in SARIF's messages (3.11.5), and stand doubled for themselves."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True, slots=True)
class _Places:
    """Files as URIs, relative to ``root`` where they lie below it."""

    root: PurePosixPath

    def physical(self, source: Source) -> dict[str, object]:
        """A line of a file."""
        region: dict[str, object] = {"startLine": max(source.line, 1)}
        if source.code.strip():
            region["snippet"] = {"text": safe(source.code.strip())}
        return {"artifactLocation": self._artifact(source.file), "region": region}

    def name(self, file: str) -> str:
        """A file's path relative to the root, or as it is."""
        path = PurePosixPath(normpath(self.root / file))
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def _artifact(self, file: str) -> dict[str, object]:
        name = self.name(file)
        uri = quote(name.encode("utf-8", "surrogatepass"))
        return {"uri": f"file://{uri}"} if name.startswith("/") else {"uri": uri, "uriBaseId": _ROOT}
