"""The comparison's rule, on texts as the tools print them; its page, and its programs."""

from __future__ import annotations

import pickle
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.compare.judged import CAUSES, CLASSES, accused, extra, in_class, judged
from benchmarks.compare.programs import CORPORA, FAULTY, Program, faulty, real
from benchmarks.compare.tools import Run, kept
from benchmarks.compare.tools import mend as mend_dumps

DOCS = Path(__file__).parents[2] / "docs"
WRONG = Program("wrong", Path("wrong.py"), 4, "SC101", (2,), "wrong.py", 12)
RIGHT = Program("right", Path("right.py"), 4)
DETAIL_PAIR = (
    "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
    "CollectiveFingerPrint(OpType=REDUCE), but Rank {1} is running collective: CollectiveFingerPrint(OpType=ALLREDUCE)."
    "Collectives differ in the following aspects: \t Op type: REDUCEvs ALLREDUCE\n"
)


def run(text: str, codes: tuple[int, ...] = (1, 1, 1, 1), tool: str = "DETAIL", tool_exit: int | None = None) -> Run:
    return Run(tool, "wrong", codes, 1.0, False, tool_exit, text, text)


def test_page_is_generated() -> None:
    page = runpy.run_path(str(DOCS / "comparison_tables.py"))["page"]()
    assert (DOCS / "comparisons.md").read_text(encoding="utf-8") == page, "run: python docs/comparison_tables.py"


def test_every_code_of_a_program_has_its_words() -> None:
    assert {faulty(name).code for name in FAULTY} | {one.code for one in real() if one.code} == set(CAUSES)


def test_every_code_is_of_one_class() -> None:
    codes = [code for codes in CLASSES.values() for code in codes]
    assert len(codes) == len(set(codes))
    assert set(CAUSES) <= set(codes)


def test_names_are_unique() -> None:
    names = [one.name for programs in CORPORA.values() for one in programs()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("culprits: ranks 0 and 2-3\n", {0, 2, 3}),
        ("culprits: rank 1 (by majority)\n", {1}),
        ("error msg: Culprit rank 3; Error type: X, Culprit rank 0; Error type: X\n", {0, 3}),
        ("missing ranks: {2, 3}\nexpected ranks: {0, 1, 2, 3}\n", {2, 3}),
        ("Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms\n", {1, 3}),
        (DETAIL_PAIR.format(0, 2) + DETAIL_PAIR.format(2, 0) + DETAIL_PAIR.format(1, 2), {2}),
        (DETAIL_PAIR.format(0, 1) + DETAIL_PAIR.format(2, 3), {0, 2}),
        ("[rank1]: ValueError: splits\n[rank0]: RuntimeError: [x] Connection closed by peer\n", {1}),
        ("[rank0]: RuntimeError: Timed out waiting 10000ms for recv operation to complete\n", set()),
    ],
)
def test_accused(text: str, ranks: set[int]) -> None:
    assert accused(text) == ranks


def test_what_is_named() -> None:
    found = judged(WRONG, run(DETAIL_PAIR.format(2, 0) + '  File "/x/wrong.py", line 12, in <module>\n'))
    assert (found.cause, found.accused, found.line, found.told) == (True, "among", True, True)
    assert not judged(WRONG, run("at /x/wrong.py:120")).line


def test_the_name_of_a_program_is_no_cause() -> None:
    named = replace(WRONG, name="buffers_overlap", code="SC503")
    assert not judged(named, run('File "buffers_overlap.py", line 3')).cause
    assert judged(named, run("two buffers overlap")).cause


def test_the_class_is_that_of_the_first_finding() -> None:
    text = "SC101 op-mismatch (error)\nSC601 invalid-argument (error)\n"
    assert in_class(text, "SC202")
    assert not in_class(text, "SC601")
    assert in_class(DETAIL_PAIR.format(2, 0), "SC202")
    assert not in_class(DETAIL_PAIR.format(2, 0), "SC501")


def test_a_finding_that_is_printed_twice_is_one() -> None:
    once = "SC101 op-mismatch (error)\n"
    assert extra("") == extra(once + once) == 0
    assert extra(once + "SC202 call-extra (error)\n") == 1


def test_a_twin_is_the_same_file_without_its_bug() -> None:
    programs = real()
    twins = {one.path: one for one in programs if not one.code}
    assert all(twins[one.path].arguments == ("fixed",) for one in programs if one.code)
    assert len(twins) * 2 == len(programs)


@pytest.mark.parametrize(
    ("codes", "text", "ended"),
    [
        ((0, 0), "", "silent"),
        ((-6, -15), "", "crash"),
        ((1, -15), "Timed out waiting 10000ms", "timeout"),
        ((1, -15), "ValueError: no", "error"),
        ((-9, -15), "", "error"),
    ],
)
def test_how_a_job_ends(codes: tuple[int, ...], text: str, ended: str) -> None:
    assert judged(WRONG, run(text, codes)).ended == ended


def test_a_correct_program_that_ends_well_is_no_alarm() -> None:
    note = "note: mismatches of these were not judged\n"
    assert not judged(RIGHT, run(note, (0, 0), "simcoll verify, dumps", 0)).alarm
    assert judged(RIGHT, run("SC102 size-mismatch (error)\n", (0, 0), "simcoll verify, dumps", 3)).alarm
    assert judged(RIGHT, run("", (-11, -11))).alarm


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    made = run("text", tool="torchfrtrace, mended", tool_exit=0)
    made.keep(tmp_path)
    [path] = tmp_path.rglob("*.json")
    assert kept(path) == made


def test_mended_dumps_have_their_groups(tmp_path: Path) -> None:
    source = tmp_path / "left"
    source.mkdir()
    dump = {"pg_config": {"": {}}, "entries": [{"process_group": ("1", "undefined")}]}
    (source / "dump_rank_0").write_bytes(pickle.dumps(dump))
    mend_dumps(source, tmp_path / "mended", {"0": [0, 1, 2], "1": [0, 2]})
    mended = pickle.loads((tmp_path / "mended" / "dump_rank_0").read_bytes())
    assert mended["pg_config"]["1"] == {"name": "1", "desc": "undefined", "ranks": "[0, 2]"}
    assert mended["pg_config"]["0"]["ranks"] == "[0, 1, 2]"
