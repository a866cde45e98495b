"""Where ranks parted is read from their stacks and the program's text: a fork leads to one side and past the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import CallPlace, EarlierDivergence, Finding, RankSource, Severity, Side
from simcoll.verifier.findings.rules import RULES
from simcoll.verifier.program_text.parting import Ran, ran_by, ran_nothing, with_partings
from tests.support.traces import trace_of

GROUP = Group("0", "default_pg", (0, 1, 2, 3))
CALL = Call("all_reduce", "allreduce", (Buffer((5,), "float32", "cpu"),), (Buffer((5,), "float32", "cpu"),), "sum")


def program(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(dedent(text).lstrip())
    return path


def at(path: Path, *frames: str) -> Source:
    """The stack through the lines that end in these marks, outermost first, each with its function's name."""
    lines = path.read_text().splitlines()
    found = []
    for frame in frames:
        mark, _, function = frame.partition(":")
        line = next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))
        found.append(Source(str(path), line, function or "step", lines[line - 1].strip()))
    return replace(found[-1], callers=tuple(found[-2::-1]))


def side(ranks: Sequence[int], source: Source, *, past: bool = False) -> Side:
    return Side(tuple(ranks), None if past else CALL, (RankSource(ranks[0], source),), past=past)


def judged(*sides: Side, code: str = "SC102", ran: Ran = ran_nothing) -> Finding:
    ranks = tuple(rank for one in sides for rank in one.ranks)
    found = Finding(code, Severity.ERROR, "", GROUP, sequence=3, ranks=ranks, sides=sides)
    return with_partings([found], ran)[0]


def told(finding: Finding) -> tuple[str, dict[str, tuple[int, ...]]] | None:
    """The text of the line that parted the ranks, without its mark, and who did what there."""
    if finding.parted is None:
        return None
    return finding.parted.source.code.partition("  #")[0], {did: ranks for ranks, did in finding.parted.sides}


TOOK, NOT = "took it", "did not take it"


def always_ran(ranks: Sequence[int], file: str, first: int, last: int) -> bool:
    return True


SHAPES = {
    "a branch that one rank alone takes": (
        """
        def step():
            if rank == 2:
                reduce(a)  # one
            reduce(b)  # other
        """,
        ("if rank == 2:", TOOK, NOT),
    ),
    "the other branch of a condition": (
        """
        def step():
            if best:
                reduce(a)  # one
            else:
                reduce(b)  # other
        """,
        ("if best:", TOOK, NOT),
    ),
    "a condition that is not met": (
        """
        def step():
            if fine:
                log()
            else:
                reduce(a)  # one
            reduce(b)  # other
        """,
        ("if fine:", NOT, TOOK),
    ),
    "an elif": (
        """
        def step():
            if x:
                log()
            elif y:
                reduce(a)  # one
            reduce(b)  # other
        """,
        ("elif y:", TOOK, NOT),
    ),
    "the innermost of several": (
        """
        def step():
            for n in range(4):
                if n % 2:
                    with timer:
                        if loss < best:
                            reduce(a)  # one
                reduce(b)  # other
        """,
        ("if loss < best:", TOOK, NOT),
    ),
    "a branch on the rank with a loop in it": (
        """
        def step():
            if rank == 0:
                for m in metrics:
                    reduce(m)  # one
            reduce(b)  # other
        """,
        ("if rank == 0:", TOOK, NOT),
    ),
    "a branch at the end of a loop that others come round": (
        """
        def step():
            for n in range(4):
                reduce(b)  # other
                if odd:
                    reduce(a)  # one
        """,
        ("if odd:", TOOK, NOT),
    ),
    "an early continue": (
        """
        def step():
            for n in range(4):
                reduce(a)  # one
                if bad:
                    continue
                reduce(b)  # other
        """,
        ("if bad:", TOOK, NOT),
    ),
    "an exception that one rank caught": (
        """
        def step():
            try:
                load()
            except OSError:
                reduce(a)  # one
            reduce(b)  # other
        """,
        ("except OSError:", "caught an exception there", "did not"),
    ),
    "a branch that returns": (
        """
        def step():
            if last:
                return reduce(a)  # one
            return reduce(b)  # other
        """,
        ("if last:", TOOK, NOT),
    ),
    "a condition in a branch that returns": (
        """
        def step():
            if last:
                if more:
                    reduce(a)  # one
                return
            reduce(b)  # other
        """,
        ("if last:", TOOK, NOT),
    ),
    "a case": (
        """
        def step():
            match kind:
                case 1:
                    reduce(a)  # one
            reduce(b)  # other
        """,
        ("case 1:", TOOK, NOT),
    ),
    "the end of a loop that one rank broke off": (
        """
        def step():
            for n in items:
                if loss > best:
                    break
            else:
                reduce(a)  # one
            reduce(b)  # other
        """,
        ("if loss > best:", NOT, TOOK),
    ),
    "what follows where nothing was raised": (
        """
        def step():
            try:
                load()
            except ValueError:
                pass
            else:
                reduce(a)  # one
            reduce(b)  # other
        """,
        ("except ValueError:", "did not", "caught an exception there"),
    ),
    "a conditional expression": (
        """
        def step():
            x = reduce(a) if best else None  # one
            reduce(b)  # other
        """,
        ("x = reduce(a) if best else None", TOOK, NOT),
    ),
    "a loop over numbers that one rank breaks off": (
        """
        def step():
            for n in range(steps):
                reduce(b)  # one
                if loss > best:
                    break
            reduce(a)  # other
        """,
        ("if loss > best:", NOT, TOOK),
    ),
    "a comprehension": (
        """
        def step():
            x = [all_reduce(p) for p in params]  # one
            reduce(b)  # other
        """,
        ("x = [all_reduce(p) for p in params]", "in the loop", "past it"),
    ),
    "a comprehension in the arguments": (
        """
        def step():
            if odd:
                all_reduce([zeros(1) for _ in range(world)])  # one
            reduce(b)  # other
        """,
        ("if odd:", TOOK, NOT),
    ),
    "an exception that others caught": (
        """
        def step():
            try:
                load()
                reduce(a)  # one
            except ValueError:
                pass
            reduce(b)  # other
        """,
        ("except ValueError:", "did not", "caught an exception there"),
    ),
    "a short circuit in a condition": (
        """
        def step():
            for n in range(2):
                if best and reduce(a):  # one
                    log()
            reduce(b)  # other
        """,
        ("if best and reduce(a):", TOOK, NOT),
    ),
    "a loop whose test calls": (
        """
        def step():
            while reduce(a):  # one
                if local:
                    break
            reduce(b)  # other
        """,
        ("if local:", NOT, TOOK),
    ),
    "a short circuit": (
        """
        def step():
            best and reduce(a)  # one
            reduce(b)  # other
        """,
        ("best and reduce(a)", TOOK, NOT),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_fork_is_named_with_what_each_side_did(shape: str, tmp_path: Path) -> None:
    text, (code, one_did, other_did) = SHAPES[shape]
    path = program(tmp_path, text)
    one, other = side([2], at(path, "one")), side([0, 1, 3], at(path, "other"))
    expected = code, {one_did: (2,), other_did: (0, 1, 3)}
    assert told(judged(one, other)) == expected
    assert told(judged(other, one)) == expected


SILENT = {
    "a loop over given numbers": "def step():\n    for n in 0, 1:\n        reduce(a)  # one\n    reduce(b)  # other\n",
    "an exception that goes on": (
        "def step():\n    try:\n        reduce(a)  # one\n    except OSError:\n        raise\n    reduce(b)  # other\n"
    ),
    "the end of a loop that nobody breaks off": (
        "def step():\n    for n in x:\n        log()\n    else:\n        reduce(a)  # one\n    reduce(b)  # other\n"
    ),
    "a straight line": "def step():\n    reduce(a)  # one\n    reduce(b)  # other\n",
    "a loop in a straight line": "def step():\n    for n in x:\n        reduce(a)  # one\n        reduce(b)  # other\n",
    "two ways through one with": "def step():\n    with a:\n        reduce(a)  # one\n    reduce(b)  # other\n",
}


@pytest.mark.parametrize("shape", SILENT)
def test_a_text_without_a_fork_between_the_lines_tells_nothing(shape: str, tmp_path: Path) -> None:
    path = program(tmp_path, SILENT[shape])
    assert judged(side([2], at(path, "one")), side([0], at(path, "other"))).parted is None


HELPERS = """
    def mean(t):
        if world > 1:
            reduce(t)  # helper
        return t

    def evaluate():
        if rank == 0:
            mean(best)  # best

    def step():
        mean(loss)  # loss
        evaluate()  # evaluate
        mean(norm)  # norm
"""


def test_the_fork_is_found_in_a_function_that_one_side_called(tmp_path: Path) -> None:
    path = program(tmp_path, HELPERS)
    one = side([0], at(path, "evaluate", "best:evaluate", "helper:mean"))
    other = side([1, 2], at(path, "norm", "helper:mean"))
    assert told(judged(one, other)) == ("if rank == 0:", {TOOK: (0,), NOT: (1, 2)})


@pytest.mark.parametrize("given", ["sync=True", "True", "*flags, sync=True"])
def test_a_branch_on_a_constant_argument_parts_nobody(given: str, tmp_path: Path) -> None:
    text = f"""
        class Module:
            def log(self, sync=False):
                if sync:
                    reduce(a)  # helper

        def step():
            if loss > limit:
                module.log({given})  # log
            reduce(b)  # other
    """
    path = program(tmp_path, text)
    finding = judged(side([0], at(path, "log", "helper:log")), side([1, 2], at(path, "other")))
    assert told(finding) == ("if loss > limit:", {TOOK: (0,), NOT: (1, 2)})


@pytest.mark.parametrize("given", ["sync=rank == 0", "*flags", ""])
def test_a_branch_on_an_argument_may_part(given: str, tmp_path: Path) -> None:
    text = f"""
        def log(sync=False):
            if sync:
                reduce(a)  # helper

        def step():
            log({given})  # log
            reduce(b)  # other
    """
    path = program(tmp_path, text)
    finding = judged(side([0], at(path, "log", "helper:log")), side([1, 2], at(path, "other")))
    assert told(finding) == ("if sync:", {TOOK: (0,), NOT: (1, 2)})


CLEANUPS = """
    @contextmanager
    def timed():
        reduce(a)  # begin
        yield
        reduce(b)  # end

    def step():
        with timed():  # with
            for batch in loader:
                if not batch.good:
                    return
                reduce(c)  # one

    def fit():
        try:
            for batch in loader:
                reduce(c)  # tried
                if stop:
                    break
        finally:
            reduce(b)  # other
"""


def test_the_end_of_a_block_is_reached_by_an_exit_from_it(tmp_path: Path) -> None:
    path = program(tmp_path, CLEANUPS)
    left = judged(side([0, 1], at(path, "one")), side([2], at(path, "with", "end:timed")))
    assert told(left) == ("if not batch.good:", {TOOK: (2,), NOT: (0, 1)})
    tried = judged(side([0, 1], at(path, "tried:fit")), side([2], at(path, "other:fit")))
    assert told(tried) == ("if stop:", {TOOK: (2,), NOT: (0, 1)})
    # Nobody leaves a block that is only begun.
    assert told(judged(side([0, 1], at(path, "one")), side([2], at(path, "with", "begin:timed")))) is None


@pytest.mark.parametrize(
    ("head", "body", "parted"),
    [
        ("for layer in layers:", "if layer.kept:\n    reduce(a)  # one", ("if layer.kept:", TOOK, NOT)),
        ("for layer in layers:", "if layer.dropped:\n    continue\nreduce(a)  # one", ("if layer.dropped:", NOT, TOOK)),
        ("for i in range(8):", "if i % 2 == 0:\n    reduce(a)  # one", None),
        ("for i, batch in enumerate(loader):", "if i % every == 0:\n    reduce(a)  # one", None),
        ("for layer in layers:", "reduce(a)  # one", None),
    ],
)
def test_ranks_that_come_to_the_same_line_again_left_out_the_call_in_a_round_before(
    head: str, body: str, parted: tuple[str, str, str] | None, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"def step():\n    {head}\n{indent(body, ' ' * 8)}\n")
    line = at(path, "one")
    lacks = Side((2,), None, (), stood=line)
    found = told(judged(side([0, 1], line), lacks, code="SC202"))
    assert found == (None if parted is None else (parted[0], {parted[1]: (0, 1), parted[2]: (2,)}))


@pytest.mark.parametrize(
    ("test", "parted"),
    [
        ("epoch == 1 and rank == 2", ("if epoch == 1 and rank == 2:", {TOOK: (2,), NOT: (0, 1)})),
        ("batch.empty", ("for batch in loader:", {"in the loop": (0, 1), "past it": (2,)})),
    ],
)
def test_ranks_that_have_gone_may_have_left_out_a_round_by_their_rank(
    test: str, parted: tuple[str, dict[str, tuple[int, ...]]], tmp_path: Path
) -> None:
    text = f"""
        def step():
            for batch in loader:
                if {test}:
                    continue
                reduce(a)  # one
    """
    line = at(program(tmp_path, text), "one")
    ran = Ran(lambda ranks, file, first, last: True)
    finding = judged(side([0, 1], line), side([2], line, past=True), code="SC702", ran=ran)
    assert told(finding) == parted


def test_ranks_that_came_into_a_block_again_left_out_what_its_end_does_for_others(tmp_path: Path) -> None:
    text = """
        @contextmanager
        def section(on):
            yield
            if on:
                barrier()  # end

        def step():
            for i in range(2):
                with section(i % every == 0):  # with
                    reduce(a)  # one
    """
    path = program(tmp_path, text)
    finding = judged(side([0, 1], at(path, "with", "end:section")), side([2], at(path, "one")))
    assert told(finding) == ("if on:", {TOOK: (0, 1), NOT: (2,)})


def test_a_way_that_the_others_went_before_is_not_what_parted_them(tmp_path: Path) -> None:
    path = program(tmp_path, HELPERS.replace("rank == 0", "good"))
    one = side([0], at(path, "evaluate", "best:evaluate", "helper:mean"))
    other = side([1, 2], at(path, "norm", "helper:mean"))
    helper = at(path, "helper:mean").line

    def ran(ranks: Sequence[int], file: str, first: int, last: int) -> bool:
        return first <= helper <= last

    assert told(judged(one, other, ran=Ran(ran))) == ("if good:", {TOOK: (0,), NOT: (1, 2)})


ROUNDS = """
    def step():
        for i, batch in enumerate(loader):
            {before}
            if {condition}:
                reduce(a)  # one
            if i % every == 0:
                for v in losses.values():
                    reduce(v)  # other
"""
SKIPPED_ROUND = ("one", "other", "one", "one"), ("one", "other", "one", "other")


def ran_lines(path: Path, *made: Sequence[str]) -> Ran:
    """What is known of ranks that made the calls of these lines."""
    group = Group("0", "default_pg", tuple(range(len(made))))
    traces = [
        trace_of(
            rank,
            len(made),
            [group],
            [Record("0", number, CALL, at(path, mark), State.COMPLETED) for number, mark in enumerate(marks, 1)],
        )
        for rank, marks in enumerate(made)
    ]
    return ran_by(traces)


def judged_by_records(path: Path, *made: Sequence[str]) -> Finding:
    """What is said of ranks that made the calls of these lines, each rank its last one now."""
    sides = (side([rank], at(path, marks[-1])) for rank, marks in enumerate(made))
    return judged(*sides, ran=ran_lines(path, *made))


@pytest.mark.parametrize(
    ("condition", "before"),
    [("world > 1", "pass"), ("trainer is not None", "trainer.log(trainer, i)"), ("average", "print(i)")],
)
def test_a_branch_that_no_round_changes_is_not_what_parted_ranks_that_just_took_it(
    condition: str, before: str, tmp_path: Path
) -> None:
    path = program(tmp_path, ROUNDS.format(condition=condition, before=before))
    finding = judged_by_records(path, *SKIPPED_ROUND)
    assert told(finding) == ("if i % every == 0:", {TOOK: (1,), NOT: (0,)})


@pytest.mark.parametrize(
    ("condition", "before"),
    [("good", "good = check(batch)"), ("queue", "queue.pop()"), ("queue", "fill(queue)"), ("ready()", "pass")],
)
def test_a_branch_that_a_round_may_change_parts_ranks_that_took_it_before(
    condition: str, before: str, tmp_path: Path
) -> None:
    path = program(tmp_path, ROUNDS.format(condition=condition, before=before))
    finding = judged_by_records(path, *SKIPPED_ROUND)
    assert told(finding) == (f"if {condition}:", {TOOK: (0,), NOT: (1,)})


def test_ranks_that_were_in_an_inner_loop_left_it_after_fewer_rounds(tmp_path: Path) -> None:
    path = program(tmp_path, ROUNDS.format(condition="world > 1", before="pass"))
    finding = judged_by_records(path, ("one", "other", "one"), ("one", "other", "other"))
    assert told(finding) == ("for v in losses.values():", {"in the loop": (1,), "past it": (0,)})


def test_a_loop_that_all_had_left_before_their_last_call_parts_nobody(tmp_path: Path) -> None:
    text = """
        def step():
            for batch in loader:
                for delta in deltas:
                    reduce(delta)  # delta
                reduce(loss)  # loss
                if rank == 0:
                    reduce(saved)  # saved
    """
    finding = judged_by_records(program(tmp_path, text), ("delta", "loss", "saved"), ("delta", "loss", "delta"))
    assert told(finding) == ("if rank == 0:", {TOOK: (0,), NOT: (1,)})


NESTED = """
    def step():
        for epoch in {epochs}:
            for batch in loader:
                reduce(a)  # batch
            reduce(b)  # epoch
        reduce(c)  # behind
"""
FEWER = {
    "epochs": ("batch batch epoch behind", "batch batch epoch batch", "for epoch in {epochs}:"),
    "epochs of another length": ("batch epoch behind", "batch epoch batch", "for epoch in {epochs}:"),
    "batches": ("batch epoch", "batch batch", "for batch in loader:"),
    "batches of a later epoch": (
        "batch batch epoch batch epoch",
        "batch batch epoch batch batch",
        "for batch in loader:",
    ),
}


@pytest.mark.parametrize("epochs", ["epochs", "range(args.epochs)"])
@pytest.mark.parametrize("kind", FEWER)
def test_of_nested_loops_the_one_is_named_whose_rounds_differ(kind: str, epochs: str, tmp_path: Path) -> None:
    path = program(tmp_path, NESTED.format(epochs=epochs))
    gone, there, line = FEWER[kind]
    finding = judged_by_records(path, gone.split(), there.split())
    assert told(finding) == (line.format(epochs=epochs), {"in the loop": (1,), "past it": (0,)})
    assert finding.parted is not None
    assert finding.parted.others == ()


@pytest.mark.parametrize("epochs", ["epochs", "range(args.epochs)"])
def test_both_loops_are_named_where_no_call_tells_their_rounds_apart(epochs: str, tmp_path: Path) -> None:
    path = program(tmp_path, NESTED.format(epochs=epochs))
    finding = judged_by_records(path, ["batch"] * 4 + ["behind"], ["batch"] * 5)
    assert told(finding) == ("for batch in loader:", {"in the loop": (1,), "past it": (0,)})
    assert finding.parted is not None
    assert [one.code for one in finding.parted.others] == [f"for epoch in {epochs}:"]


ACCUMULATED = """
    def update():
        for tensor in {tensors}:
            reduce(tensor)  # one

    def backward():
        if steps % every == 0:
            update()  # two

    def step():
        for i in range(4):
            backward()  # three
        reduce(b)  # behind
"""


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ((5, 6), "if steps % every == 0:"),
        ((5, 6, 5), "if steps % every == 0:"),
        ((5, 5), "for tensor in model.parameters():"),
    ],
)
def test_a_loop_that_went_through_the_same_calls_again_was_come_to_more_often(
    sizes: Sequence[int], line: str, tmp_path: Path
) -> None:
    path = program(tmp_path, ACCUMULATED.format(tensors="model.parameters()"))
    inner, behind = at(path, "three", "two:backward", "one:update"), at(path, "behind")
    calls = [replace(CALL, inputs=(Buffer((size,), "float32", "cpu"),)) for size in sizes]
    ends = [Record("0", len(sizes) + 1, CALL, behind)], [Record("0", len(sizes) + 1, calls[0], inner)]
    rounds = [Record("0", number, call, inner, State.COMPLETED) for number, call in enumerate(calls, 1)]
    traces = [trace_of(rank, 2, [Group("0", "default_pg", (0, 1))], [*rounds, *end]) for rank, end in enumerate(ends)]
    finding = judged(side([0], behind), side([1], inner), ran=ran_by(traces))
    found = told(finding)
    assert found is not None
    assert found[0] == line


LAYERS = """
    def fit():
        reduce(a)  # first
        for n in range(3):
            reduce(b)  # round

    def prepare():
        if ready:
            return
        fit()  # fit

    def update():
        if seen > most:
            return
        reduce(c)  # late

    def forward():
        prepare()  # prepare
        update()  # update

    def step():
        for layer in layers:
            forward()  # layer
"""


def test_an_exit_that_ranks_had_just_passed_is_not_the_one_they_took(tmp_path: Path) -> None:
    path = program(tmp_path, LAYERS)
    prepares = "layer", "prepare:forward", "fit:prepare"
    first, before = at(path, *prepares, "first:fit"), at(path, *prepares, "round:fit")
    late = at(path, "layer", "update:forward", "late:update")
    group = Group("0", "default_pg", (0, 1, 2))
    made = [[first, before, late], [first, before, late], [first, before, first]]
    traces = [
        trace_of(
            rank,
            3,
            [group],
            [Record("0", number, CALL, one, State.COMPLETED) for number, one in enumerate(sources, 1)],
        )
        for rank, sources in enumerate(made)
    ]
    finding = judged(side([0, 1], late), side([2], first), ran=ran_by(traces))
    assert told(finding) == ("if seen > most:", {TOOK: (2,), NOT: (0, 1)})
    assert (finding.code, finding.culprits) == ("SC202", (2,))


@pytest.mark.parametrize("leave", ["continue", "break", "return"])
def test_an_exit_of_the_loop_that_takes_everybody_round_is_the_one_they_took(leave: str, tmp_path: Path) -> None:
    text = f"""
        def fit():
            for batch in batches:
                if isnan(loss(batch)):
                    {leave}
                reduce(batch)  # one

        def step():
            fit()  # fit
            reduce(b)  # other
    """
    path = program(tmp_path, text)
    one, other = at(path, "fit", "one:fit"), at(path, "other")
    group = Group("0", "default_pg", (0, 1, 2))
    traces = [
        trace_of(rank, 3, [group], [Record("0", number, CALL, stack, State.COMPLETED) for number, stack in made])
        for rank, made in enumerate([[(1, one), (2, one)]] * 2 + [[(1, one), (2, other)]])
    ]
    finding = judged(side([0, 1], one), side([2], other), ran=ran_by(traces))
    assert told(finding) == ("if isnan(loss(batch)):", {TOOK: (2,), NOT: (0, 1)})


def test_a_way_that_others_never_went_comes_before_one_that_they_did(tmp_path: Path) -> None:
    text = """
        def step():
            for batch in loader:
                if batch.good:
                    reduce(a)  # one
                if late:
                    reduce(b)  # other
    """
    finding = judged_by_records(program(tmp_path, text), ("one", "one"), ("one", "other"))
    assert told(finding) == ("if late:", {TOOK: (1,), NOT: (0,)})


SAVES_ALONE = """
    def step():
        for epoch in range(2):
            for batch in loader:
                reduce(batch)  # one
            if {condition}:
                reduce(b)  # other
"""


@pytest.mark.parametrize("condition", ["rank == 0", "self.gpu_id == 0 and epoch % every == 0"])
def test_a_collective_in_a_branch_on_the_rank_parts_before_a_loop(condition: str, tmp_path: Path) -> None:
    path = program(tmp_path, SAVES_ALONE.format(condition=condition))
    ran = ran_lines(path, ("one", "one", "other"), ("one", "one", "one"))
    round_again, alone = side([1], at(path, "one")), side([0], at(path, "other"))
    for place in (None, CallPlace(GROUP, 3)):
        finding = judged(round_again, replace(alone, place=place), ran=ran)
        assert told(finding) == (f"if {condition}:", {TOOK: (0,), NOT: (1,)})
    elsewhere = judged(round_again, replace(alone, place=CallPlace(Group("1", "other", (0,)), 1)), ran=ran)
    assert told(elsewhere) == ("for batch in loader:", {"in the loop": (1,), "past it": (0,)})


def test_ranks_that_left_out_one_call_ran_their_loops_as_often_as_the_others(tmp_path: Path) -> None:
    path = program(tmp_path, SAVES_ALONE.format(condition="better(epoch)"))
    ran = ran_lines(path, ("one", "one", "other", "one", "one"), ("one", "one", "one", "one"))
    lacking = replace(side([1], at(path, "one")), call=None, sources=(), stood=at(path, "one"))
    finding = judged(side([0], at(path, "other")), lacking, code="SC202", ran=ran)
    assert told(finding) == ("if better(epoch):", {TOOK: (0,), NOT: (1,)})


def test_ranks_that_leave_a_function_early_take_its_return(tmp_path: Path) -> None:
    text = """
        def evaluate():
            if not found:
                return
            reduce(a)  # one

        def step():
            evaluate()  # evaluate
            reduce(b)  # other
    """
    path = program(tmp_path, text)
    finding = judged(side([0], at(path, "evaluate", "one:evaluate")), side([1], at(path, "other")))
    assert told(finding) == ("if not found:", {TOOK: (1,), NOT: (0,)})


def test_ranks_that_ended_left_the_loop_in_which_the_others_are(tmp_path: Path) -> None:
    text = """
        def step():
            for epoch in range(2):
                for batch in loader:
                    reduce(batch)  # one
    """
    path = program(tmp_path, text)
    here, gone = side([0, 1], at(path, "one")), side([2], at(path, "one"), past=True)
    for sides in ((here, gone), (gone, here)):
        finding = judged(*sides, code="SC702")
        assert told(finding) == ("for batch in loader:", {"in the loop": (0, 1), "past it": (2,)})


def test_of_several_exits_in_one_branch_the_branch_is_named(tmp_path: Path) -> None:
    text = """
        def step():
            for batch in loader:
                reduce(batch)  # one
                if number == 7 and rank == 2:
                    if done:
                        sys.exit(0)
                    if bad:
                        raise ValueError
    """
    path = program(tmp_path, text)
    here, gone = side([0, 1], at(path, "one")), side([2], at(path, "one"), past=True)
    finding = judged(here, gone, code="SC702")
    assert told(finding) == ("if number == 7 and rank == 2:", {TOOK: (2,), NOT: (0, 1)})


@pytest.mark.parametrize("over", ["range(5 - (rank == 3))", "range(sizes[dist.get_rank()])"])
def test_a_loop_over_a_range_that_depends_on_the_rank_is_not_run_alike(over: str, tmp_path: Path) -> None:
    text = f"""
        def forward():
            if not update and not self.replaces:
                return
            reduce(a)  # one

        def step():
            for batch in {over}:
                forward()  # loop
            destroy()  # end
    """
    path = program(tmp_path, text)
    here, gone = side([0, 1], at(path, "loop", "one:forward")), side([3], at(path, "end"))
    finding = judged(here, gone, code="SC702", ran=Ran(always_ran))
    assert told(finding) == (f"for batch in {over}:", {"in the loop": (0, 1), "past it": (3,)})


@pytest.mark.parametrize(("body", "expected"), [("yield", True), ("return", False)])
def test_a_rank_that_left_a_loop_over_a_generator_took_its_exit(body: str, expected: bool, tmp_path: Path) -> None:
    text = f"""
        def folds():
            for fold in range(4):
                reduce(fold)  # one
                {body} fold

        def step():
            for score in folds():  # folds
                if rank == 2 and score > 1:
                    break
            reduce(b)  # other
    """
    path = program(tmp_path, text)
    finding = judged(side([0, 1], at(path, "folds", "one:folds")), side([2], at(path, "other")))
    exits = "if rank == 2 and score > 1:", {TOOK: (2,), NOT: (0, 1)}
    assert (told(finding) == exits) == expected


def test_a_loop_that_all_run_alike_parts_nobody_where_an_exit_may_have(tmp_path: Path) -> None:
    text = """
        def save():
            if rank != 0:
                return
            barrier()  # save

        def step():
            for epoch in range(2):
                for p in model.parameters():
                    reduce(p)  # one
                save()  # other
    """
    path = program(tmp_path, text)
    finding = judged(side([1, 2], at(path, "one")), side([0], at(path, "other", "save:save")), ran=Ran(always_ran))
    assert told(finding) == ("if rank != 0:", {TOOK: (1, 2), NOT: (0,)})


def test_a_rank_behind_the_loop_is_past_it(tmp_path: Path) -> None:
    text = """
        def step():
            for batch in loader:
                reduce(batch)  # one
            reduce(b)  # other
    """
    path = program(tmp_path, text)
    finding = judged(side([0], at(path, "one")), side([1], at(path, "other")))
    assert told(finding) == ("for batch in loader:", {"in the loop": (0,), "past it": (1,)})
    assert finding.code == "SC202"


@pytest.mark.parametrize("leave", ["break", "continue"])
@pytest.mark.parametrize(
    ("condition", "line", "did"),
    [
        ("loss > best", "if loss > best:", (TOOK, NOT)),
        ("step == steps", "for step, batch in enumerate(loader):", ("past it", "in the loop")),
        ("seen > most", "for step, batch in enumerate(loader):", ("past it", "in the loop")),
    ],
)
def test_an_exit_by_the_number_of_rounds_is_less_likely_than_uneven_data(
    condition: str, line: str, did: tuple[str, str], leave: str, tmp_path: Path
) -> None:
    text = f"""
        def step():
            for step, batch in enumerate(loader):
                seen += 1
                if {condition}:
                    {leave}
                reduce(batch)  # one
            reduce(b)  # other
    """
    path = program(tmp_path, text)
    finding = judged(side([0, 1], at(path, "one")), side([2], at(path, "other")), ran=Ran(always_ran))
    assert told(finding) == (line, {did[0]: (2,), did[1]: (0, 1)})


def test_a_rank_that_ended_took_the_exit_of_the_process(tmp_path: Path) -> None:
    text = """
        def step():
            for epoch in range(epochs):
                reduce(batch)  # one
                if done(epoch):
                    sys.exit(0)
    """
    path = program(tmp_path, text)
    here, gone = side([0, 1], at(path, "one")), side([2], at(path, "one"), past=True)
    assert told(judged(here, gone, code="SC702")) == ("if done(epoch):", {TOOK: (2,), NOT: (0, 1)})


def test_ranks_that_went_the_way_for_other_parameters_did_not_for_this_one(tmp_path: Path) -> None:
    text = """
        def step():
            for p in model.parameters():
                if p.grad is not None:
                    reduce(p)  # one
            reduce(b)  # other
    """
    path = program(tmp_path, text)
    finding = judged(side([0, 1], at(path, "one")), side([2], at(path, "other")), ran=Ran(always_ran))
    assert told(finding) == ("if p.grad is not None:", {TOOK: (0, 1), NOT: (2,)})


def test_a_condition_on_which_the_line_does_not_depend_chose_no_operation(tmp_path: Path) -> None:
    text = "def step():\n    op = trainer.op\n    reduce(a, op)  # one\n    reduce(b, Op.MAX if odd else Op.SUM)\n"
    path = program(tmp_path, text)
    most, odd = side([0, 1, 3], at(path, "one")), side([2], at(path, "one"))
    odd = replace(odd, call=replace(CALL, reduce_op="max"))
    assert told(judged(most, odd, code="SC104")) is None


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        ("op = Op.MAX if odd else Op.SUM", "op = Op.MAX if odd else Op.SUM"),
        ("if odd:\n        op = Op.MAX\n    else:\n        op = Op.SUM", "if odd:"),
        ("op = Op.SUM\n    a = make()\n    if odd:\n        op = Op.MAX", "if odd:"),
    ],
)
def test_the_condition_that_chose_the_operation_is_named(chosen: str, line: str, tmp_path: Path) -> None:
    path = program(tmp_path, f"def step():\n    {chosen}\n    reduce(a, op)  # one\n")
    usual = side([0, 1], at(path, "one"))
    odd = side([2], at(path, "one"))
    odd = replace(odd, call=replace(CALL, reduce_op="max"))
    assert told(judged(usual, odd, code="SC104")) == (line, {TOOK: (2,), NOT: (0, 1)})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("mean(x if rank == 2 else y)", "it"),
        ("mean([i for i in range(4) if not (rank == 2 and i)])", "rank == 2"),
        ("mean(sum(i for i in range(4) if i > 1 or rank == 2))", "rank == 2"),
        ("mean(x if rank == 2 and step else y)", "rank == 2"),
        ("mean(x if os.environ['RANK'] == '2' and step else y)", "os.environ['RANK'] == '2'"),
        ("mean(x if int(os.getenv('RANK', '0')) == 2 and step else y)", "int(os.getenv('RANK', '0')) == 2"),
    ],
)
def test_a_condition_among_others_on_its_line_is_named(body: str, words: str, tmp_path: Path) -> None:
    path = program(tmp_path, f"{body}  # call\n")
    finding = judged(side((0, 1), at(path, "call:<module>")), side((2,), at(path, "call:<module>")))
    assert told(finding) == (body, {f"found {words} true": (2,), f"found {words} false": (0, 1)})


def test_a_call_that_a_loop_or_an_exit_left_out_is_skipped(tmp_path: Path) -> None:
    path = program(tmp_path, SHAPES["a loop over numbers that one rank breaks off"][0])
    finding = judged(side([2], at(path, "other")), side([0, 1], at(path, "one")))
    assert (finding.code, finding.culprits) == ("SC202", (2,))
    assert finding.message == "rank 2 skipped the all_reduce that ranks 0-1 made as collective 3"


def test_one_line_that_calls_two_functions_says_which(tmp_path: Path) -> None:
    text = """
        def first():
            reduce(a)  # one

        def second():
            reduce(b)  # other

        def step():
            x = first() if rank else second()  # both
    """
    path = program(tmp_path, text)
    finding = judged(side([0], at(path, "both", "other:second")), side([1], at(path, "both", "one:first")))
    assert told(finding) == ("x = first() if rank else second()", {TOOK: (1,), NOT: (0,)})


def test_a_text_that_changed_or_is_gone_tells_nothing(tmp_path: Path) -> None:
    path = program(tmp_path, SHAPES["an elif"][0])
    one, other = side([2], at(path, "one")), side([0], at(path, "other"))
    assert judged(one, other).parted is not None
    # Sides keep what the ranks ran; the folder's text is what is there now.
    moved = tmp_path / "moved"
    moved.mkdir()
    changed = program(moved, SHAPES["an elif"][0])
    sides = [side([rank], at(changed, mark)) for rank, mark in ((2, "one"), (0, "other"))]
    changed.write_text("\n" + changed.read_text())
    assert judged(*sides).parted is None
    changed.unlink()
    assert judged(*sides).parted is None


@pytest.mark.parametrize("file", ["/dev/zero", "fifo", "folder", "\0", "wrong.py", "deep.py", "long.py"])
def test_a_hostile_file_is_neither_waited_for_nor_believed(file: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "wrong.py").write_text("def step(:\n" * 3)
    (tmp_path / "deep.py").write_text("(" * 5000 + ")" * 5000)
    (tmp_path / "long.py").write_bytes(b"x = 1\n" * (1 << 19))
    path = str(tmp_path / file) if "\0" not in file else file
    sources = [Source(path, line, "step", "x = 1") for line in (1, 2)]
    assert judged(side([0], sources[0]), side([1], sources[1])).parted is None


def test_a_call_that_only_some_ranks_came_by_is_skipped_or_extra(tmp_path: Path) -> None:
    path = program(tmp_path, SHAPES["a branch that one rank alone takes"][0])
    finding = judged(side([0, 1, 3], at(path, "other")), side([2], at(path, "one")))
    assert (finding.code, finding.culprits) == ("SC202", (2,))
    assert finding.message == "rank 2 made all_reduce, as its collective 3, which ranks 0-1 and 3 did not make"
    skipped = judged(side([0], at(path, "other")), side([1, 2], at(path, "one")))
    assert (skipped.code, skipped.culprits) == ("SC202", (0,))
    assert RULES["SC202"].name == "call-skipped"


LEFT_OUT = """
    def step():
        for number, batch in enumerate(loader):
            {skip}
            forward(batch)  # one
            if not update:
                continue
            {every}
                log(number)  # other
"""


@pytest.mark.parametrize(
    ("skip", "every", "line"),
    [
        ("if rank == 1 and number == 1: continue", "if number == last:", "if rank == 1 and number == 1: continue"),
        ("if number == rank: continue", "if number % 10 == 0:", "if number == rank: continue"),
        ("if number == 1: continue", "if number == last:", "if not update:"),
        ("if rank == 1 and number == 1: continue", "with timer:", "if not update:"),
        ("if rank == 1 and number == 1: raise ValueError", "if number == last:", "if not update:"),
    ],
)
def test_a_round_left_out_shows_where_a_later_round_makes_more_calls(
    skip: str, every: str, line: str, tmp_path: Path
) -> None:
    path = program(tmp_path, LEFT_OUT.format(skip=skip, every=every))
    sides = side([0], at(path, "one")), side([1], at(path, "other"))
    finding = judged(*sides, ran=Ran(always_ran))
    took, other = ((1,), (0,)) if line == skip else ((0,), (1,))
    assert told(finding) == (line, {TOOK: took, NOT: other})


SIZES = {
    "an argument": "reduce(ones(4 if late else 8))  # call",
    "a dimension": "reduce(ones(2, 4 if late else 8))  # call",
    "a name": """size = 4 if late else 8  # <-
            reduce(ones(size))  # call""",
    "an if": """size = 8
            if late:  # <-
                size = 4
            reduce(ones(size))  # call""",
}


@pytest.mark.parametrize("program_text", SIZES)
@pytest.mark.parametrize("sizes", [((4,), (8,)), ((2, 4), (2, 8)), ((4,), (5,)), ((8, 4), (4, 8))])
def test_a_condition_by_which_the_program_chooses_a_size_is_named(
    program_text: str, sizes: tuple[tuple[int, ...], tuple[int, ...]], tmp_path: Path
) -> None:
    path = program(tmp_path, f"def step():\n            {SIZES[program_text]}\n")
    one, other = (replace(CALL, inputs=(Buffer(shape, "float32"),)) for shape in sizes)
    here = at(path, "call")
    finding = judged(replace(side([1], here), call=one), replace(side([0, 2], here), call=other))
    if (sizes[0][-1], sizes[1][-1]) != (4, 8) or sizes[0][:-1] != sizes[1][:-1]:
        assert finding.parted is None
        return
    lines = path.read_text().splitlines()
    line = next((one for one in lines if one.endswith("# <-")), lines[1]).strip().partition("  #")[0]
    assert told(finding) == (line, {TOOK: (1,), NOT: (0, 2)})


LATER = """
    def step():
        if rank == 1:
            {late}
            reduce(a)  # one
        else:
            {other}
        reduce(b)  # two
        reduce(c)  # three
"""


RETRIED = """
    def step():
        for attempt in range(3):
            try:
                meet()  # one
                fetch()
                return
            except OSError:
                pass

    def train():
        step()  # call
        reduce(b)  # other
"""


def test_a_handler_that_leads_to_the_next_attempt_sent_nobody_past_the_loop(tmp_path: Path) -> None:
    path = program(tmp_path, RETRIED)
    sides = side([1], at(path, "call:train", "one:step")), side([0, 2], at(path, "other:train"))
    assert told(judged(*sides)) is None
    (tmp_path / "once").mkdir()
    path = program(tmp_path / "once", RETRIED.replace("for attempt in range(3)", "if True").replace("return", "pass"))
    sides = side([1], at(path, "call:train", "one:step")), side([0, 2], at(path, "other:train"))
    caught = ("except OSError:", {"did not": (1,), "caught an exception there": (0, 2)})
    assert told(judged(*sides)) in (caught, ("if True:", {TOOK: (1,), NOT: (0, 2)}))


MATCHED = """
    def step():
        match kind:
            case 2 if rank == 2:
                reduce(a)  # one
            case {other}
        reduce(b)  # other
"""


@pytest.mark.parametrize(
    ("other", "code"), [("_: pass", "SC202"), ("_: reduce(c)", "SC102"), ("1 if reduce(c): pass", "SC102")]
)
def test_a_case_that_alone_makes_calls_makes_one_more(other: str, code: str, tmp_path: Path) -> None:
    path = program(tmp_path, MATCHED.format(other=other))
    finding = judged(side([0, 1, 3], at(path, "other")), side([2], at(path, "one")))
    assert (finding.code, finding.culprits) == (code, (2,) if code == "SC202" else ())
    assert told(finding) == ("case 2 if rank == 2:", {TOOK: (2,), NOT: (0, 1, 3)})


@pytest.mark.parametrize("ranks", [(0,), (0, 2, 3)])
def test_a_skipped_call_that_shows_at_a_later_one_is_one_where_the_ranks_came_apart(
    ranks: tuple[int, ...], tmp_path: Path
) -> None:
    path = program(tmp_path, LATER.format(late="log()", other="pass"))
    finding = came_apart(path, ranks)
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 3, () if len(ranks) == 1 else (1,))
    assert [[one.source.line for one in side.sources] for side in finding.sides] == [[6 + 1], [4]]
    assert (finding.came_apart, finding.differing, [one.sequence for one in finding.before]) == (None, (), [2])
    assert finding.message.endswith("; it shows at collective 5: sizes differ")
    assert told(finding) == ("if rank == 1:", {TOOK: (1,), NOT: ranks})


def test_it_is_none_where_the_other_way_makes_calls_too(tmp_path: Path) -> None:
    finding = came_apart(program(tmp_path, LATER.format(late="log()", other="reduce(d)")), (0,))
    assert (finding.code, finding.sequence, finding.message) == ("SC102", 5, "sizes differ")
    assert (finding.came_apart is None, told(finding)) == (False, ("if rank == 1:", {TOOK: (1,), NOT: (0,)}))


def came_apart(path: Path, ranks: tuple[int, ...]) -> Finding:
    """The finding on a difference in size at collective 5 of these ranks and rank 1, which came apart before."""
    apart = EarlierDivergence(3, (side(ranks, at(path, "two")), side([1], at(path, "one"))))
    before = tuple(Record("0", number, CALL, Source("train.py", 1, "step"), State.COMPLETED) for number in (2, 3, 4))
    sides = side(ranks, at(path, "three")), side([1], at(path, "two"))
    asked = Finding("SC102", Severity.ERROR, "sizes differ", GROUP, sequence=5, sides=sides, differing=("shape",))
    return with_partings([replace(asked, ranks=(*ranks, 1), before=before, came_apart=apart)], ran_nothing)[0]


RETURNS = """
    def resume(path):
        if rank == 0:
            broadcast(start)  # one
            return int(start)
        return {other}

    def step():
        resume(path)  # call
        reduce(a)  # other
"""


def test_a_branch_that_returns_as_the_rest_of_its_function_does_comes_back(tmp_path: Path) -> None:
    path = program(tmp_path, RETURNS.format(other="0"))
    finding = judged(side([1, 2, 3], at(path, "other")), side([0], at(path, "call", "one:resume")))
    assert (finding.code, finding.culprits) == ("SC202", (0,))
    assert told(finding) == ("if rank == 0:", {TOOK: (0,), NOT: (1, 2, 3)})


def test_it_does_not_where_the_rest_makes_calls(tmp_path: Path) -> None:
    path = program(tmp_path, RETURNS.format(other="receive(path)"))
    finding = judged(side([1, 2, 3], at(path, "other")), side([0], at(path, "call", "one:resume")))
    assert finding.code == "SC102"


TWO_WAYS = ("the other branch of a condition", "an exception that one rank caught", "a branch that returns")


@pytest.mark.parametrize("shape", TWO_WAYS)
def test_calls_of_two_ways_meet_and_are_compared(shape: str, tmp_path: Path) -> None:
    path = program(tmp_path, SHAPES[shape][0])
    assert judged(side([0], at(path, "other")), side([2], at(path, "one"))).code == "SC102"


def test_messages_and_failures_part_by_design(tmp_path: Path) -> None:
    path = program(tmp_path, SHAPES["the other branch of a condition"][0])
    sides = side([0], at(path, "other")), side([2], at(path, "one"))
    assert [judged(*sides, code=code).parted for code in ("SC301", "SC304", "SC501", "SC701")] == [None] * 4


@pytest.mark.parametrize(
    ("condition", "told_of"),
    [("n + 1 != comm.world_size", False), ("n % 2 and n < 3", False), ("n < last", True), ("n + 1 != rank", True)],
)
def test_a_branch_on_the_round_alone_parts_nobody_who_has_been_there(
    condition: str, told_of: bool, tmp_path: Path
) -> None:
    text = f"""
        def step():
            for n in range(comm.world_size):
                if {condition}:
                    send(a)  # inside
            barrier()  # behind
    """
    path = program(tmp_path, text)
    found = judged(side([1], at(path, "inside")), side([2], at(path, "behind")), code="SC204", ran=Ran(always_ran))
    assert told(found) == ((f"if {condition}:", {TOOK: (1,), NOT: (2,)}) if told_of else None)


@pytest.mark.parametrize("caller", ["train()  # all", "for n in range(n_steps):\n    train()  # all"])
def test_a_branch_or_exit_past_which_all_have_been_parts_nobody_if_the_program_comes_there_once(
    caller: str, tmp_path: Path
) -> None:
    text = f"""
def train():
    if eager:
        return
    if flash:
        for n in range(world_size):
            send(a)  # inside
    barrier()  # behind

{caller}
"""
    path = program(tmp_path, text)
    inside, behind = at(path, "all:<module>", "inside:train"), at(path, "all:<module>", "behind:train")
    group = Group("0", "default_pg", (0, 1))
    traces = [
        trace_of(0, 2, [group], [Record("0", 1, CALL, inside, State.STARTED)]),
        trace_of(1, 2, [group], [Record("0", 1, CALL, inside), Record("0", 2, CALL, behind, State.STARTED)]),
    ]
    found = judged(side([0], inside), side([1], behind), code="SC204", ran=ran_by(traces))
    assert (told(found) is None) == caller.startswith("train")


@pytest.mark.parametrize("catches", [True, False])
def test_an_exception_that_nothing_catches_leads_to_no_later_call(catches: bool, tmp_path: Path) -> None:
    text = """
        def commit():
            if open:
                raise RuntimeError
            send(a)  # inside

        def train():
            try:
                commit()  # call
            {}:
                pass
            barrier()  # behind
    """.format("except RuntimeError" if catches else "finally")
    path = program(tmp_path, text)
    inside, behind = at(path, "call:train", "inside:commit"), at(path, "behind:train")
    found = judged(side([0], inside), side([1], behind), code="SC204")
    assert told(found) == (("if open:", {TOOK: (1,), NOT: (0,)}) if catches else None)


@pytest.mark.parametrize("installed", [False, True])
def test_an_exit_in_a_package_does_not_part_ranks_that_wait_in_messages(installed: bool, tmp_path: Path) -> None:
    text = """
        def wrapped(function):
            if local:
                return None
            return function()  # inside

        def step():
            wrapped(exchange)  # exchange
            backward()  # behind
    """
    folder = tmp_path / "site-packages" if installed else tmp_path
    folder.mkdir(exist_ok=True)
    path = program(folder, text)
    inside, behind = at(path, "exchange", "inside:wrapped"), at(path, "behind")
    call = replace(CALL, op="recv")
    sides = [replace(side([rank], source), call=call) for rank, source in enumerate((inside, behind))]
    found = told(judged(*sides, code="SC204"))
    assert found == (None if installed else ("if local:", {NOT: (0,), TOOK: (1,)}))


CACHED = """
    def size(n):
        for part in parts:
            fetch(part)
        all_reduce(t)  # inner

    def step():
        for n in sizes:
            {first}  # one
            scale = size(n)  # two
            log()
"""


@pytest.mark.parametrize(
    ("first", "since", "code", "makers"),
    [
        ("all_reduce(g)", ("one",), "SC202", (1,)),  # the others came round without the second
        ("all_reduce(g)", ("two", "inner:size"), "SC202", (0, 2)),  # rank 1 came past the first
        ("all_reduce(torch.cat([g, h]))", ("one",), "SC202", (1,)),  # torch's functions call none of the program
        ("all_reduce(meet(g))", ("one",), "SC102", ()),  # another function may
        ("model(g).backward()", ("one",), "SC102", ()),  # both calls may be of one visit
        ("all_reduce(g)", (), "SC102", ()),  # the last call is not known
    ],
)
def test_ranks_that_came_past_a_line_skipped_its_call_whatever_decided_that(
    first: str, since: tuple[str, ...], code: str, makers: tuple[int, ...], tmp_path: Path
) -> None:
    path = program(tmp_path, CACHED.format(first=first))
    before = at(path, *since).stack if since else ()
    ran = Ran(lambda ranks, file, low, high: False, before=lambda side: before)
    finding = judged(side([0, 2], at(path, "one")), side([1], at(path, "two", "inner:size")), ran=ran)
    assert finding.code == code
    assert {one.ranks for one in finding.sides if not one.note} == ({makers} if makers else {(0, 2), (1,)})


def test_a_line_in_a_branch_may_not_have_been_on_the_way(tmp_path: Path) -> None:
    text = "def step():\n    for n in range(9):\n        all_reduce(c)  # zero\n"
    path = program(
        tmp_path, f"{text}        if n % 2 == 0:\n            all_reduce(a)  # one\n        all_reduce(b)  # two\n"
    )
    ran = Ran(lambda ranks, file, low, high: True, before=lambda side: at(path, "zero").stack)
    assert judged(side([0, 2], at(path, "one")), side([1], at(path, "two")), ran=ran).code == "SC102"


WITHIN = """
    def step():
        for n in sizes:
            with context(n):  # head
                loss.backward()  # inside
                all_reduce(g)  # last
            try:
                all_reduce(p)  # tried
            except ValueError:
                all_reduce(q)  # caught
            except OSError:
                pass
            all_reduce(h)  # behind
"""


@pytest.mark.parametrize(
    ("one", "other", "code"),
    [
        ("inside", "behind", "SC202"),
        ("last", "behind", "SC202"),
        ("head", "behind", "SC202"),
        ("inside", "last", "SC202"),
        ("inside", "tried", "SC202"),
        ("tried", "behind", "SC202"),
        ("caught", "behind", "SC102"),
        ("head", "last", "SC102"),  # the context may call this line as it is left
    ],
)
def test_the_block_of_a_with_or_a_try_is_on_everybodys_way(one: str, other: str, code: str, tmp_path: Path) -> None:
    path = program(tmp_path, WITHIN)
    ran = Ran(lambda ranks, file, low, high: True, before=lambda side: at(path, "behind").stack)
    finding = judged(side([0, 1, 3], at(path, one)), side([2], at(path, other)), ran=ran)
    assert (finding.code, finding.culprits) == (code, (2,) if code == "SC202" else ())


def test_where_a_program_comes_again_its_first_call_is_of_any_round(tmp_path: Path) -> None:
    path = program(tmp_path, "def step():\n    for n in sizes:\n        first(n)  # one\n        second(n)  # two\n")
    asked = side([0, 2], at(path, "two")), side([1], at(path, "one"))
    first = Finding("SC102", Severity.ERROR, "", GROUP, sequence=1, ranks=(0, 1, 2), sides=asked)
    assert with_partings([first], ran_nothing)[0].code == "SC102"


def test_the_first_call_of_a_group_may_be_skipped_too(tmp_path: Path) -> None:
    path = program(tmp_path, "def step():\n    loss.backward()  # one\n    all_reduce(t)  # other\n")
    asked = side([0, 1], at(path, "one")), side([2], at(path, "other"))
    first = Finding("SC102", Severity.ERROR, "", GROUP, sequence=1, ranks=(0, 1, 2), sides=asked)
    [finding] = with_partings([first], ran_nothing)
    assert finding.message == "rank 2 skipped the all_reduce that ranks 0-1 made as collective 1"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("if rank not in members:\n            continue\n        made = new_group(members)", "if rank not in members:"),
        ("if rank in members:\n            made = new_group(members)", "if rank in members:"),
        ("if members:\n            made = new_group(members)", ""),
    ],
)
def test_ranks_that_make_unlike_groups_at_one_line_came_there_in_other_rounds(
    body: str, line: str, tmp_path: Path
) -> None:
    path = program(tmp_path, f"def step():\n    for members in layout:\n        {body}  # one\n")
    finding = judged(side([0, 1], at(path, "one")), side([2], at(path, "one")), code="SC401")
    assert told(finding) == ((line, {"took it in different rounds": (0, 1, 2)}) if line else None)


def test_what_a_call_is_given_by_the_rank_is_no_round_of_a_loop_left_out(tmp_path: Path) -> None:
    path = program(
        tmp_path,
        """
        def step():
            for edge in edges:
                broadcast(mine, src=edge.src)  # mine
            broadcast(theirs, src=rank if rank == 1 else edge.src)  # theirs
        """,
    )
    calls = [replace(CALL, op="broadcast", spelling="broadcast", reduce_op=None, root=root) for root in (0, 1)]
    sources = at(path, "mine"), at(path, "theirs")
    pairs = enumerate(zip(sources, calls, strict=True))
    sides = [replace(side([rank], source), call=call) for rank, (source, call) in pairs]
    found = judged(*sides, code="SC105")
    assert found.code == "SC105"
    assert told(found) == (sources[1].code.partition("  #")[0], {"found it true": (1,), "found it false": (0,)})
