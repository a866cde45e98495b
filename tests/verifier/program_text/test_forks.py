"""The text of a program's file, parsed also while other threads parse, and its forks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from simcoll.verifier.program_text import forks


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
    text = forks.text_of(str(path))
    assert not left
    assert (text is not None) is read
    assert text is None or text.line(2) == "print(step)"


@pytest.mark.parametrize(("other", "alone"), [("pass", True), ("return", True), ("raise Stop", False)])
def test_a_branch_that_returns_is_alone_where_the_other_one_comes_back_to_the_caller_too(
    other: str, alone: bool
) -> None:
    tree = ast.parse(f"def save():\n    if rank == 0:\n        barrier()\n        return\n    else:\n        {other}\n")
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    around, branch = forks.steps_to(function, 3)
    fork = forks.fork_of(branch, [around])
    assert fork is not None
    assert fork.alone == alone
