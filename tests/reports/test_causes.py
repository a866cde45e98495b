"""Who should act, as every renderer says it."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from simcoll.reports.causes import advice_rows
from simcoll.reports.html_report import html_report
from simcoll.reports.sarif import sarif_report
from simcoll.reports.terminal import TerminalReport
from simcoll.verifier.findings.causes import Advice, Cause, Evidence, Restart, Strength, Suspicion
from tests.reports.test_sarif import ROOT, a_report, mismatch
from tests.support.documents import check_sarif, valid_report

LOG = Evidence("kernel log of node-1", "Xid 79, GPU has fallen off the bus: NVRM: Xid (PCI:0000:3b:00): 79")
RAS = Evidence("NCCL RAS", "<b>away</b>")
ADVICE = Advice(
    Suspicion(
        "hardware fault", Cause.MACHINE, Strength.STRONG, Restart.WITHOUT_HOSTS, (LOG,), ranks=(2,), hosts=("node-1",)
    ),
    (Suspicion("missing in RAS", Cause.RANK, Strength.WEAK, Restart.UNKNOWN, (RAS,), (3,)),),
)
REPORT = replace(a_report(mismatch()), advice=ADVICE)


def test_the_terminal_ends_with_it() -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(TerminalReport(REPORT))
    assert [line.rstrip() for line in console.export_text().splitlines()][-6:] == [
        "  cause     a machine (rank 2 on node-1), strong evidence",
        "  evidence  kernel log of node-1: Xid 79, GPU has fallen off the bus: NVRM: Xid",
        "            (PCI:0000:3b:00): 79",
        "  restart   yes, without node-1",
        "  also      one rank's own data or process (rank 3), weak evidence",
        "            NCCL RAS: <b>away</b>",
    ]


def test_json_has_every_field() -> None:
    document: Any = valid_report(REPORT)["advice"]
    assert {name: document[name] for name in ("cause", "strength", "restart", "ranks", "hosts", "rule")} == {
        "cause": "machine",
        "strength": "strong",
        "restart": "without hosts",
        "ranks": [2],
        "hosts": ["node-1"],
        "rule": "hardware fault",
    }
    assert document["evidence"] == [{"source": LOG.source, "text": LOG.text}]
    assert [one["rule"] for one in document["others"]] == ["missing in RAS"]
    assert valid_report(a_report(mismatch()))["advice"] is None


def test_the_page_has_a_table_with_every_text_escaped() -> None:
    page = html_report(REPORT)
    assert "Who should act" in page
    assert "&lt;b&gt;away&lt;/b&gt;" in page
    assert "<b>away" not in page
    assert "Who should act" not in html_report(a_report(mismatch()))


def test_sarif_has_it_as_a_property() -> None:
    document: Any = sarif_report(REPORT, 3, ROOT)
    check_sarif(document)
    assert document["runs"][0]["properties"]["advice"]["restart"] == "without hosts"


def test_a_program_is_named_without_ranks() -> None:
    one = Suspicion("calls disagree", Cause.PROGRAM, Strength.STRONG, Restart.NO, (), ranks=(2,))
    assert advice_rows(Advice(one)) == [
        ("cause", ("the program, strong evidence",)),
        ("restart", ("no: it would fail again",)),
    ]
