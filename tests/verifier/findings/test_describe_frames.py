"""As many frames are shown as tell the sides apart; the advice asks for a skipped call where lines are apart."""

from __future__ import annotations

from dataclasses import replace

from simcoll.core.record import Source
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.describe import advice_of, frames_shown, leading, stack_text
from simcoll.verifier.findings.finding import Finding, Parting, RankSource, Severity, Side
from simcoll.verifier.findings.rules import RULES

LINE = Source("utils.py", 6, "mean", "dist.all_reduce(t)")
MAIN = Source("train.py", 40, "main", "step()")


def called(*lines: int, file: str = "train.py") -> Source:
    callers = (*(Source(file, line, "step", "mean(x)") for line in lines), MAIN)
    return replace(LINE, callers=callers)


def sides(*sources: Source) -> tuple[Side, ...]:
    return tuple(Side((rank,), None, (RankSource(rank, source),)) for rank, source in enumerate(sources))


def shown(*sources: Source) -> list[list[int]]:
    both = sides(*sources)
    return [[one.frame.line for one in frames_shown(both, source)] for source in sources]


def test_the_caller_that_differs_leads_to_a_helpers_line() -> None:
    assert shown(called(7, 9), called(7, 12)) == [[9, 7, 6], [12, 7, 6]]
    assert shown(called(7, 9), called(8, 9)) == [[7, 6], [8, 6]]
    assert shown(called(7), called(7, 9)) == [[40, 7, 6], [9, 7, 6]]
    one = called(7, 9)
    assert stack_text(sides(one, called(8, 9)), one) == "train.py:7 in step into utils.py:6 in mean"
    assert leading(sides(one, called(8, 9)), one).line == 7


def test_a_package_never_leads_to_a_line_of_the_user() -> None:
    file = "/usr/lib/python3/site-packages/fit.py"
    one, other = called(7, file=file), called(8, file=file)
    assert [(shown.how, shown.frame.line) for shown in frames_shown(sides(one, other), one)] == [("at", 6), ("from", 7)]


def test_lines_that_tell_the_sides_apart_stand_alone_in_their_own_file() -> None:
    one, other = called(7, file=LINE.file), replace(called(9, file=LINE.file), line=8)
    assert shown(*(replace(source, callers=source.callers[:1]) for source in (one, other))) == [[6], [8]]


def test_a_helpers_line_is_shown_with_the_caller_in_another_file() -> None:
    assert shown(called(7), replace(called(9), line=8)) == [[6, 7], [8, 9]]
    assert shown(called(7), called(7)) == [[6, 7], [6, 7]]
    assert shown(called(7), LINE) == [[6, 7], [6]]
    inside = Source(LINE.file, 30, "mean_of_all", "mean(t)")
    assert shown(*[replace(LINE, callers=(inside, *called(7).callers))] * 2) == [[6, 30, 7], [6, 30, 7]]


def test_a_line_that_stands_alone_is_shown_with_its_caller() -> None:
    assert shown(called(7)) == [[6, 7]]
    assert shown(replace(LINE, callers=(replace(MAIN, function="<module>"),))) == [[6, 40]]
    assert shown(replace(LINE, callers=(Source(LINE.file, 40, "step", "mean(x)"),))) == [[6, 40]]
    outermost = Source(LINE.file, 40, "<module>", "mean(x)")
    assert shown(replace(LINE, callers=(outermost,))) == [[6]]
    assert shown(replace(LINE, callers=(outermost, Source("launcher.py", 9, "main")))) == [[6]]
    assert shown(replace(outermost, callers=(Source("launcher.py", 9, "<module>"),))) == [[40]]


def test_packages_tell_apart_what_one_line_of_the_user_called() -> None:
    fit, save, loop = (Source("fit.py", line, name) for line, name in ((1, "fit"), (2, "save"), (3, "loop")))
    one, other = replace(called(7), through=(save, fit)), replace(called(7), through=(loop, fit))
    assert stack_text(sides(one, other), one).endswith("step()") is False
    assert [shown.how for shown in frames_shown(sides(one, other), one)] == ["at", "through", "through"]
    assert stack_text(sides(one, other), one) == "utils.py:6 in mean through fit.py:1 in fit through fit.py:2 in save"


def test_the_advice_asks_for_a_skipped_call_first_where_lines_are_apart() -> None:
    def advice(code: str, *sources: Source) -> str:
        return advice_of(Finding(code, Severity.ERROR, "", sides=sides(*sources)))

    assert advice("SC102", called(7), called(9)).startswith("Look for an extra or skipped call first")
    assert advice("SC102", called(7), called(7)) == RULES["SC102"].advice
    assert advice("SC105", called(7), called(9)) == RULES["SC105"].advice
    known = Finding("SC102", Severity.ERROR, "", sides=sides(called(7), called(9)), parted=Parting(LINE, ()))
    assert advice_of(known) == RULES["SC102"].advice


def test_the_advice_says_that_one_side_sends_objects() -> None:
    def advice(code: str, *lines: tuple[str, str]) -> str:
        made = [
            Side(
                (rank,),
                Call("all_gather", "allgather", (Buffer((1,), dtype),)),
                (RankSource(rank, Source("train.py", rank, "step", text)),),
            )
            for rank, (text, dtype) in enumerate(lines)
        ]
        return advice_of(Finding(code, Severity.ERROR, "", sides=tuple(made), parted=Parting(LINE, ())))

    objects = "dist.all_gather_object(found, x)", "int64"
    tensor = "dist.all_gather(found, x)  # not all_gather_object(x)", "int64"
    for code in ("SC101", "SC102", "SC103"):
        assert advice(code, objects, tensor).startswith("Send objects on every rank (all_gather_object)")
        assert advice(code, objects, objects) == RULES[code].advice
        assert advice(code, tensor, tensor) == RULES[code].advice
        assert advice(code, (objects[0], "float32"), tensor) == RULES[code].advice
    assert advice("SC105", objects, tensor) == RULES["SC105"].advice
