"""Forks by the text of a program."""

from __future__ import annotations

import ast

import pytest

from simcoll.verifier.program_text import forks, syntax


@pytest.mark.parametrize(("other", "alone"), [("pass", True), ("return", True), ("raise Stop", False)])
def test_a_branch_that_returns_is_alone_where_the_other_one_comes_back_to_the_caller_too(
    other: str, alone: bool
) -> None:
    tree = ast.parse(f"def save():\n    if rank == 0:\n        barrier()\n        return\n    else:\n        {other}\n")
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    around, branch = syntax.steps_to(function, 3)
    fork = forks.fork_of(branch, [around])
    assert fork is not None
    assert fork.alone == alone


@pytest.mark.parametrize(
    ("head", "by_rank"),
    [
        ("for part in parts[rank]:", True),
        ("for part in range(\n    dist.get_rank(),\n    8,\n):", True),
        ("for part in args.local_rank:", True),
        ("for rank in range(8):", False),
        ("for part in ranks:", False),
        ("while queue:", False),
    ],
)
def test_a_loop_over_what_depends_on_the_rank_is_known_whatever_its_lines(head: str, by_rank: bool) -> None:
    tree = ast.parse(f"{head}\n    barrier()\n")
    (loop,) = syntax.steps_to(tree, len(head.splitlines()) + 1)[1:]
    fork = forks.fork_of(loop)
    assert fork is not None
    assert fork.by_rank == by_rank
