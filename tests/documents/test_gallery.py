"""The gallery of findings: each program is run once, finds what it states, and its picture shows that run."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from docs.draw_gallery import complaints
from docs.draw_report import content, draw, play
from docs.gallery import PAGE, Example, example, examples, faulty, page
from simcoll.verifier.findings.rules import RULES

EXAMPLES = examples()
LARGEST = 60_000


def test_every_code_has_a_program() -> None:
    assert [one.code for one in EXAMPLES] == sorted(RULES)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python docs/gallery.py"


@pytest.mark.parametrize("one", EXAMPLES, ids=lambda one: one.code)
def test_a_picture_is_small_named_and_loads_nothing(one: Example) -> None:
    source = one.picture.read_text(encoding="utf-8")
    assert len(source.encode()) < LARGEST
    assert not re.search(r'(href|src)="|@import|url\((?!#)', source)
    root = ElementTree.fromstring(source)
    assert root.get("role") == "img"
    label = root.get("aria-label") or ""
    assert f"{one.code} {RULES[one.code].name}" in label
    assert re.findall(r"\d+", label.partition("culprit rank")[2]) == [str(rank) for rank in one.culprits]


def test_a_program_without_its_mark_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ValueError, match=r"expected one comment '# Bug: ...', inside a function; found 0"):
        faulty("SC101.py", "def main() -> None:\n    pass\n")
    path = tmp_path_factory.mktemp("programs") / "SC102.py"
    path.write_text('"""Words.\n\nRun: simcoll run SC102.py\nsimcoll: SC101\n"""\n', encoding="utf-8")
    with pytest.raises(ValueError, match="expected 'Run: COMMAND' and 'simcoll: SC102'"):
        example(path)


def test_times_alone_do_not_make_another_picture() -> None:
    text = '<svg><text class="r1">waited for 3 s since 06:05:21, rank 1</text></svg>'
    assert content(text) == content(text.replace("3 s", "12 s").replace("05:21", "07:00"))
    assert content(text) != content(text.replace("rank 1", "rank 2"))
    assert content(text) != content(text.replace('"r1"', '"r2"'))


def test_where_the_launcher_ended_ranks_does_not_either_but_a_finding_does() -> None:
    text = "<svg><text>now: rank 1 failed</text><text>╭─ SC101</text><text>rank 3</text></svg>"
    assert content(text) == content(text.replace("failed", "was stopped"))
    assert content(text) != content(text.replace("rank 3", "rank 2"))


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("one", EXAMPLES, ids=lambda one: one.code)
def test_a_program_finds_what_it_states_and_looks_as_pictured(one: Example) -> None:
    pytest.importorskip("torch")
    played = play(one.command)
    assert complaints(one, played) == []
    assert one.command[-1] == f"examples/findings/{one.code}.py"
    shown = content(one.picture.read_text(encoding="utf-8"))
    assert content(draw(played)) == shown, f"run: python -m docs.draw_gallery {one.code}\n{played.screen}"
