"""Pages of prices: an operation, a job, a simulated run; whole, self-contained, and hostile names are text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import networkx as nx
import pytest

from simcoll.blackbox.gather import gather
from simcoll.cli import main
from simcoll.estimator.estimate import estimate
from simcoll.pricing.price import price
from simcoll.pricing.views.estimate_page import estimate_sheet
from simcoll.pricing.views.page import pricing_sheet, spans_of
from simcoll.reports.page_shell import Figure, on_one_scale
from simcoll.reports.price_page import COMPUTE, EXPOSED, WAITING, bandwidth_curve, laned, sheet_page
from simcoll.topology.clusters import cluster
from simcoll.topology.svg import draw
from tests.reports.pages import HOSTILE
from tests.reports.tags import Tags
from tests.support.jobs import write_job

TOPOLOGY = cluster(gpu="h100", nodes=2)


def operation(topology=TOPOLOGY, sizes=(1 << 20, 1 << 30)):
    rows = [[estimate("all_reduce", size, topology)] for size in sizes]
    return estimate_sheet([str(topology.graph["name"])], [topology], rows)


def renamed(graph):
    """The same cluster, all of whose names are hostile."""
    named = nx.relabel_nodes(graph, {node: f"{HOSTILE}{node}" for node in graph})
    for _, attributes in named.nodes(data=True):
        if "host" in attributes:
            attributes["host"] = f"{HOSTILE}{attributes['host']}"
    named.graph["name"] = HOSTILE
    return named


def priced(tmp_path):
    write_job(tmp_path / "job")
    traces = gather([tmp_path / "job"]).traces
    return price(traces, TOPOLOGY)


def test_an_operation_has_its_figures_and_the_topology_with_the_bottleneck() -> None:
    found = estimate("all_reduce", 1 << 30, TOPOLOGY)
    page = sheet_page(operation())
    for text in ("all_reduce of 1 GiB on 16 ranks of 2 x 8 h100", f"{found.bus_bandwidth / 1e9:,.2f} GB/s"):
        assert text in page
    tags = Tags(page)
    pictures = [link for link in tags.links if not link.startswith("#")]
    assert len(pictures) == 1
    assert pictures[0].startswith("data:image/svg+xml;base64,")
    assert found.bottleneck is not None
    assert f"bottleneck: {found.bottleneck.link} {found.bottleneck.source} -&gt; {found.bottleneck.target}" in page
    assert "What the time is made of" in page


def test_hostile_names_of_a_topology_are_text() -> None:
    tags = Tags(sheet_page(operation(renamed(TOPOLOGY))))
    assert tags.handlers == []
    assert len(tags.text["script"]) == 1
    assert tags.seen.isdisjoint({"iframe", "object", "embed", "base", "link"})
    assert all(link.startswith(("#", "data:image/svg+xml;base64,")) for link in tags.links)


def test_a_job_has_its_timeline_scenarios_and_assumptions(tmp_path: Path) -> None:
    found = priced(tmp_path)
    page = sheet_page(pricing_sheet(found, [found, found], TOPOLOGY, ["assumed"], ["the job has findings"]))
    for text in ("What if", "Where a rank&#39;s time goes", "assumed", "the job has findings", "Bottleneck links"):
        assert text in page
    document = json.loads(Tags(page).text["script"][0])
    assert document["ranks"] == [0, 1, 2, 3]
    assert set(document["ops"]) == {"all_reduce", "broadcast", "send", "barrier"}


def test_the_timeline_adds_up_to_what_the_ranks_did(tmp_path: Path) -> None:
    found = priced(tmp_path)
    spans = spans_of(found, None)
    for kind, column in (
        (COMPUTE, found.replayed.rank_compute),
        (EXPOSED, found.replayed.rank_exposed),
        (WAITING, found.replayed.rank_waited),
    ):
        for row, seconds in enumerate(column.tolist()):
            own = sum(span.end - span.begin for span in spans.spans if (span.row, span.kind) == (row, kind))
            assert own == pytest.approx(seconds * 1e9, abs=2 * len(spans.spans))


def test_a_large_job_shows_some_ranks_and_says_which(tmp_path: Path) -> None:
    spans = spans_of(priced(tmp_path), None, most=400)
    assert len(spans.spans) <= 400
    assert 0 < len(spans.ranks) < 4
    assert "of 4 ranks" in spans.note


def test_lanes_hold_what_runs_beside_each_other() -> None:
    assert list(laned([0, 0, 5, 6, 7, 20], [10, 5, 9, 8, 9, 30])) == [1, 2, 2, 3, 3, 1]


def test_pictures_of_a_page_are_drawn_on_one_scale() -> None:
    drawn = [draw(cluster(gpu="h100", nodes=nodes)) for nodes in (1, 2)]
    figures = on_one_scale([Figure(str(place), svg, "") for place, svg in enumerate(drawn)])
    widths = [re.findall(r'viewBox="0 0 ([0-9]+) ', figure.svg) for figure in figures]
    assert re.findall(r'viewBox="0 0 ([0-9]+) ', drawn[0]) != re.findall(r'viewBox="0 0 ([0-9]+) ', drawn[1])
    assert widths[0] == widths[1]
    assert len(widths[0]) == 1


def test_a_curve_needs_two_sizes() -> None:
    assert bandwidth_curve([8], [("x", [1e9])], "t") is None
    curve = bandwidth_curve([8, 64, 512], [("x", [1e9, 5e9, 2e10])], "t")
    assert curve is not None
    assert [point[0] for point in curve.lines[0].points] == sorted(point[0] for point in curve.lines[0].points)
    assert all(curve.top <= y <= curve.bottom for _, y in curve.lines[0].points)


def test_the_commands_write_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path / "job")
    job, page = str(tmp_path / "job"), tmp_path / "page.html"
    asked = [
        (["estimate", "all_reduce", "--bytes", "1GiB", "--gpu", "h100", "--compare", "dgx-b200"], "Topology: dgx-b200"),
        (["estimate", "barrier", "--gpu", "h100"], "barrier on 8 ranks"),
        (["estimate", job, "--gpu", "h100", "--straggler", "3:1.5"], "straggler 3:1.5"),
        (["verify", job, "--gpu", "h100"], "bottleneck: nvlink"),
        (["simulate", "SC104", "--gpu", "h100"], "of virtual time"),
    ]
    for arguments, text in asked:
        main([*arguments, "--html", str(page)])
        assert text in page.read_text(encoding="utf-8")
        page.unlink()
    assert main(["estimate", job, "--gpu", "h100", "--html", str(tmp_path / "none" / "x.html")]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert main(["verify", job, "--gpu", "h100"]) == 2
    assert "a topology goes with --html" in capsys.readouterr().err


def test_a_job_that_is_larger_than_its_topology_has_its_report_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path / "job")
    page = tmp_path / "page.html"
    assert main(["verify", str(tmp_path / "job"), "--gpu", "h100", "--gpus-per-node", "2", "--html", str(page)]) == 0
    assert "cannot be priced on this topology" in capsys.readouterr().err
    assert "Nothing wrong" in page.read_text(encoding="utf-8")
