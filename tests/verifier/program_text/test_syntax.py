"""The text of a program's file, parsed also while other threads parse."""

from __future__ import annotations

import ast
import linecache
from pathlib import Path

import pytest

from simcoll.verifier.program_text import syntax


@pytest.mark.parametrize(("failures", "read"), [(0, True), (2, True), (3, False)])
def test_a_text_is_parsed_again_where_another_thread_was_in_between(
    failures: int, read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left, parse = tmp_path / "program.py", [None] * failures, ast.parse
    path.write_text("for step in range(3):\n    print(step)\n")

    def parsed(data: bytes) -> ast.Module:
        if left:
            left.pop()
            raise SystemError("AST constructor recursion depth mismatch (before=147, after=55)")
        return parse(data)

    monkeypatch.setattr(ast, "parse", parsed)
    text = syntax.text_of(str(path))
    assert not left
    assert (text is not None) is read
    assert text is None or text.line(2) == "print(step)"


@pytest.mark.parametrize(("terms", "read"), [(50, True), (1000, False)])
def test_a_text_that_is_nested_too_deeply_is_left_alone(terms: int, read: bool, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"if rank == {' + '.join(['0'] * terms)}:\n    pass\n")
    assert (syntax.text_of(str(path)) is not None) is read


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("for work in exchange(ops): work.wait()", 1),
        ("for work in exchange(ops): [one.wait() for one in work]", 1),
        ("for step in range(3): reduce(step)", 2),
        ("if rank == 0: dist.barrier()", 2),
        ("for step in range(3): pass", 2),
    ],
)
def test_a_line_that_waits_for_its_own_head_is_that_of_the_head(text: str, depth: int) -> None:
    assert len(syntax.steps_to(ast.parse(text), 1)) == depth


@pytest.mark.parametrize(
    ("before", "encoding"),
    [("\f", "utf-8"), ('sign = "\u2028\x85"', "utf-8"), ("# -*- coding: latin-1 -*-", "latin-1")],
)
def test_lines_are_those_that_the_interpreter_counts(before: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_bytes(f"{before}\r\nlog('m\xfcde')\n".encode(encoding))
    text = syntax.text_of(str(path))
    assert text is not None
    assert text.line(2) == linecache.getline(str(path), 2).strip() == "log('m\xfcde')"
    assert text.line(3) == ""
