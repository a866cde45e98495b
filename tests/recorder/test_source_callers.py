"""A line is recorded with its callers: the user's own and those of packages, bounded, told apart by their places."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from simcoll.core.record import FRAME_LIMIT, Source
from simcoll.core.source_roots import OWN_FRAMES
from simcoll.recorder import source as recorder_source
from simcoll.recorder.source import current_source, program_begins, traceback_source
from tests.support.native import KINDS, parts


@pytest.fixture(autouse=True, params=KINDS)
def _chains_of_this_test(request: pytest.FixtureRequest) -> Iterator[None]:
    with parts(request.param):
        recorder_source.forget_chains()
    yield
    recorder_source.forget_chains()


def module_at(path: Path, text: str) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    names: dict[str, Any] = {"current_source": current_source}
    exec(compile(text, str(path), "exec"), names)
    return names


def functions(frames: tuple[Source, ...]) -> list[str]:
    return [frame.function for frame in frames]


HELPER = "def mean():\n    return current_source()\ndef first():\n    return mean()\ndef second():\n    return mean()\n"


def test_one_helper_called_from_two_places_has_two_stacks(tmp_path: Path) -> None:
    names = module_at(tmp_path / "train.py", HELPER)
    first, second = names["first"](), names["second"]()
    assert first == second
    assert (first.callers[0].function, first.callers[0].line) == ("first", 4)
    assert second.callers[0] == Source(str(tmp_path / "train.py"), 6, "second", "return mean()")
    assert first.stack != second.stack


def test_a_chain_that_was_seen_before_gives_the_same_object(tmp_path: Path) -> None:
    names = module_at(tmp_path / "train.py", HELPER)
    found = [names["first"]() for _ in range(3)]
    assert found[0] is found[1] is found[2]


def test_equal_code_of_two_files_is_told_apart_among_the_callers(tmp_path: Path) -> None:
    text = "def step(ask):\n    return ask()\n"
    steps = [module_at(tmp_path / folder / "train.py", text)["step"] for folder in "ab"]
    assert steps[0].__code__ == steps[1].__code__
    found = [step(current_source) for step in steps for _ in range(2)]
    assert [one.file for one in found] == [str(tmp_path / folder / "train.py") for folder in "aabb"]
    asked = [step(lambda: current_source()) for step in steps for _ in range(2)]
    assert [one.callers[0].file for one in asked] == [str(tmp_path / folder / "train.py") for folder in "aabb"]


def test_frames_of_packages_stand_between_and_do_not_count_beyond_the_program(tmp_path: Path) -> None:
    package = module_at(tmp_path / "site-packages" / "loop.py", "def fit(step):\n    return step()\n")["fit"]
    own = module_at(
        tmp_path / "train.py", "def train(fit):\n    return fit(current_source)\ndef call(f):\n    return f()\n"
    )
    inside = own["train"](package)
    assert (inside.function, functions(inside.through)) == ("train", ["fit"])
    between = own["train"](lambda ask: package(lambda: own["call"](ask)))
    assert functions(between.callers)[:3] == ["<lambda>", "fit", "<lambda>"]


def test_what_calls_the_program_is_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> Source:
        return current_source()

    def outermost() -> Source:
        return step()

    program_begins(outermost.__code__)
    try:
        assert functions(outermost().stack) == ["step"]
    finally:
        monkeypatch.setattr(recorder_source, "_outermost", None)


def deep(levels: int, ask: Callable[[], Source]) -> Source:
    return ask() if levels == 0 else deep(levels - 1, ask)


def test_the_innermost_frames_of_a_deep_stack_are_kept() -> None:
    found = deep(200, current_source)
    assert functions(found.stack) == ["deep"] * OWN_FRAMES


def test_packages_deep_in_one_another_are_bounded_too(tmp_path: Path) -> None:
    text = "def hop(levels, ask):\n    return ask() if levels == 0 else hop(levels - 1, ask)\n"
    hop = module_at(tmp_path / "site-packages" / "loop.py", text)["hop"]
    found = hop(100, current_source)
    assert found.file == __file__
    assert len(found.through) == FRAME_LIMIT
    assert len(deep(0, lambda: hop(100, lambda: current_source())).callers) <= FRAME_LIMIT


def test_a_program_of_ever_new_chains_falls_back_to_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_source, "_CHAINS", 5)
    found = []
    for number in range(8):
        names = module_at(tmp_path / f"step{number}.py", HELPER)
        found.append(names["first"]())
    assert all(one.callers for one in found[:5])
    assert [one.callers for one in found[5:]] == [()] * 3
    assert [one.function for one in found] == ["mean"] * 8
    assert names["first"]() == found[-1]


def test_a_thread_of_the_program_has_its_own_callers() -> None:
    found: list[Source] = []
    thread = threading.Thread(target=lambda: found.append(deep(1, current_source)))
    thread.start()
    thread.join()
    assert functions(found[0].stack) == ["deep", "deep", "<lambda>"]


def test_a_traceback_has_the_callers_of_the_line_that_raised() -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError) as raised:  # noqa: PT011
        fail()
    found = traceback_source(raised.value.__traceback__)
    assert functions(found.stack) == ["fail", "test_a_traceback_has_the_callers_of_the_line_that_raised"]
