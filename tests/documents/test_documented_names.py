"""Pages name what there is: the diagram its source, pages files, the API page public names, tables keys of JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import simcoll
from simcoll import testing
from simcoll.cli import main
from simcoll.cli.arguments import add_topology_arguments
from simcoll.live.document import job_schema
from simcoll.reports.json_report import json_schema
from tests.release.test_layers import LAYERS, package_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def labels() -> list[str]:
    """The lines that the diagram's source writes into boxes, of rooms and beside arrows."""
    source = (DOCS / "architecture.dot").read_text(encoding="utf-8")
    return [line.strip() for label in re.findall(r'label="([^"]*)"', source) for line in label.split("\\n")]


def test_the_diagram_shows_what_its_source_says() -> None:
    picture = ElementTree.parse(DOCS / "images" / "architecture.svg").getroot()
    shown = ["".join(one.itertext()).replace("\u00a0", " ").strip() for one in picture.iter(f"{SVG}text")]
    assert sorted(shown) == sorted(labels())
    source = (DOCS / "architecture.dot").read_text(encoding="utf-8")
    ways = [one for one in picture.iter(f"{SVG}g") if "edge" in str(one.get("class"))]
    assert len(ways) == source.count("->")


def test_the_diagram_has_a_name_a_description_and_loads_nothing() -> None:
    text = (DOCS / "images" / "architecture.svg").read_text(encoding="utf-8")
    picture = ElementTree.fromstring(text)
    named = {str(one.get("id")): one.text for one in picture if one.tag in (f"{SVG}title", f"{SVG}desc")}
    assert picture.get("role") == "img"
    assert sorted(picture.get("aria-labelledby", "").split()) == sorted(named)
    assert all(named.values())
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(href|src)=|@import|url\((?!#)", text)


def test_every_file_in_the_diagram_exists() -> None:
    files = [line for line in labels() if re.fullmatch(r"[\w/]+(\.py|/)", line)]
    assert len(files) > 12
    assert [file for file in files if not (ROOT / file).exists()] == []


def exists(name: str) -> bool:
    """As a file or folder of the checkout, by its path there or by its path as installed; ``*`` stands for any text."""
    installed = re.sub("^simcoll/(backends|reports|verifier)/", r"\1/", name)
    return any((ROOT / path).exists() or bool(list(ROOT.glob(path))) for path in (name, installed))


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_files_of_the_package_that_a_page_names_exist(page: Path) -> None:
    folders = "simcoll|backends|verifier|reports|benchmarks|tests"
    named = re.findall(rf"`((?:{folders})/[\w./*]+)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not exists(name)] == []


def test_the_architecture_has_every_package_in_the_order_of_imports() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("\n## The packages\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w/]+)/` \| \S", table, re.MULTILINE)
    assert [name.removeprefix("simcoll/").replace("/", ".") for name in listed] == [
        layer.removeprefix("simcoll.") for layer in LAYERS if package_of(layer) == layer
    ]


def test_the_page_on_python_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto(?:function|class|exception|data):: (\w+)(?:\(\))?$", page, re.MULTILINE)
    listed += re.findall(r"   :members: (.*)$", page.partition("automodule:: simcoll.testing")[2], re.MULTILINE)[
        0
    ].split(", ")
    assert sorted(listed) == sorted([*simcoll.__all__, *testing.__all__])


def keys_of(page: str, heading: str) -> set[str]:
    """The names in the first column of the tables below a heading."""
    part = re.split(
        r"^#+ ", (DOCS / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2], flags=re.MULTILINE
    )[0]
    return {name for row in re.findall(r"^\| (`[^|]*) \|", part, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    main([*command, "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.slow
def test_the_page_on_the_estimator_has_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    [found] = printed(capsys, "estimate", "all_reduce", "--bytes", "1MiB", "--gpu", "h100")["estimates"]
    assert keys_of("estimator.md", "## JSON") == set(found)


@pytest.mark.slow
def test_the_page_on_scenarios_has_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "simulate", "SC204", "--explore", "2")
    assert keys_of("scenarios.md", "## JSON") == set(found)


def test_the_page_on_running_jobs_has_every_key() -> None:
    assert keys_of("top.md", "## JSON") == set(job_schema()["properties"])


def test_the_page_on_reports_has_every_key_that_the_schema_has() -> None:
    assert keys_of("report.md", "## `report.json`") == set(json_schema()["properties"])


COMMANDS = {
    "run": "run.md",
    "verify": "verify.md",
    "preflight": "preflight.md",
    "estimate": "pricing.md",
    "simulate": "scenarios.md",
    "calibrate": "estimator.md",
    "plan": "plan.md",
    "metrics": "metrics.md",
    "status": "top.md",
    "top": "top.md",
}


def listed(help_page: str) -> set[str]:
    """The options of a help page."""
    return set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", help_page, re.MULTILINE)) - {"--help"}


@pytest.mark.parametrize(("command", "page"), COMMANDS.items())
def test_every_option_is_on_the_page_of_its_command(
    command: str, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a topology are on its own page, to which the command's leads."""
    parser = argparse.ArgumentParser(add_help=False)
    add_topology_arguments(parser)
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
    text, options = (DOCS / page).read_text(encoding="utf-8"), listed(capsys.readouterr().out)
    shared = listed(parser.format_help())
    assert len(options) > 2
    assert {name for name in options - shared if not re.search(rf"{name}\b", text)} == set()
    assert not options & shared or "topologies.md#on-the-command-line" in text
