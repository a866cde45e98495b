"""The line that is named is the user's own, through whatever calls lie between it and the collective."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from simcoll.core.record import UNKNOWN_SOURCE, Source  # noqa: E402
from simcoll.core.source_roots import INSTALLED, kind_of  # noqa: E402
from simcoll.recorder.source import current_source, traceback_source  # noqa: E402


def ask() -> Source:
    return current_source()


def here() -> int:
    frame: FrameType = sys._getframe(1)
    return frame.f_lineno


def test_the_callers_line_is_named_with_its_function_and_text() -> None:
    source, line = current_source(), here()
    name = "test_the_callers_line_is_named_with_its_function_and_text"
    assert source == Source(__file__, line, name, "source, line = current_source(), here()")
    assert current_source() is not source


def through_torch(function: Callable[[], Source]) -> Source:
    found: list[Source] = []

    class Hooked(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x

    module = Hooked()
    module.register_forward_hook(lambda *_: found.append(function()))
    module(torch.zeros(1))
    return found[0]


def test_frames_of_torch_and_the_library_are_passed_over() -> None:
    assert through_torch(current_source).function == "<lambda>"
    with contextlib.ExitStack() as stack:
        found: list[Source] = []
        stack.callback(functools.partial(_append, found))
    assert found[0].file == __file__


def _append(found: list[Source]) -> None:
    found.append(current_source())


def module_at(path: Path, text: str) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    names: dict[str, Any] = {"current_source": current_source}
    exec(compile(text, str(path), "exec"), names)
    return names


def test_a_file_that_was_executed_is_the_users(tmp_path: Path) -> None:
    path = tmp_path / "job" / "train.py"
    names = module_at(path, "def step():\n    return current_source()\n")
    assert names["step"]() == Source(str(path), 2, "step", "return current_source()")


@pytest.mark.parametrize("name", ["<string>", "<frozen importlib._bootstrap>", "<eval_with_key>.3"])
def test_generated_code_is_passed_over(name: str) -> None:
    names: dict[str, Any] = {"current_source": current_source}
    exec(compile("def generated():\n    return current_source()\n", name, "exec"), names)
    assert names["generated"]().function == "test_generated_code_is_passed_over"


def installed(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A module that looks as if it were installed, without writing into the environment."""
    path = os.path.join(sysconfig.get_path("purelib"), "somebodys_package", "trainer.py")
    monkeypatch.setattr("linecache.getline", lambda *_: "a line")
    names: dict[str, Any] = {"current_source": current_source}
    exec(compile(text, path, "exec"), names)
    return names


def test_own_code_is_preferred_to_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    names = installed("def fit(step):\n    return step()\ndef reduce():\n    return current_source()\n", monkeypatch)
    assert names["reduce"]().function == "test_own_code_is_preferred_to_installed_packages"
    assert names["fit"](ask).function == "ask"


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_interpreters_folder_are_installed_ones_too(folder: str, tmp_path: Path) -> None:
    names = module_at(tmp_path / "lib" / folder / "lightning" / "loop.py", "def fit(step):\n    return step()\n")
    assert kind_of(str(tmp_path / "lib" / folder / "lightning" / "loop.py")) == INSTALLED
    assert names["fit"](ask).function == "ask"


def test_installed_code_is_named_where_there_is_no_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = installed("def outer():\n    return inner()\ndef inner():\n    return current_source()\n", monkeypatch)
    found: list[Source] = []
    thread = threading.Thread(target=lambda: None)
    # A thread's own frames: threading's, then only the package's.
    names["found"] = found
    exec(compile("def run():\n    found.append(inner())\n", names["inner"].__code__.co_filename, "exec"), names)
    thread = threading.Thread(target=names["run"])
    thread.start()
    thread.join()
    assert found[0].function == "inner"


def decorated(function: Callable[[], Source]) -> Callable[[], Source]:
    @functools.wraps(function)
    def wrapper() -> Source:
        return function()

    return wrapper


@decorated
def in_a_decorator() -> Source:
    return current_source()


def test_the_innermost_of_the_users_lines_is_named() -> None:
    assert in_a_decorator().function == "in_a_decorator"
    assert (lambda: current_source())().function == "<lambda>"
    assert next(source for source in (current_source() for _ in range(1))).function == "<genexpr>"
    assert next(iter({0: current_source()}.values())).function == "test_the_innermost_of_the_users_lines_is_named"

    def generator() -> Iterator[Source]:
        yield current_source()

    assert [source.function for source in generator()] == ["generator"]


def test_two_files_of_equal_code_are_told_apart(tmp_path: Path) -> None:
    text = "def step():\n    return current_source()\n"
    files = [tmp_path / "a" / "train.py", tmp_path / "b" / "train.py"]
    assert [module_at(path, text)["step"]().file for path in files] == [str(path) for path in files]


def test_a_call_of_the_autograd_engine_is_the_line_of_backward() -> None:
    found: list[Source] = []

    class Noted(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return note(gradient)

    names: dict[str, Any] = {"current_source": current_source, "found": found}
    exec(compile("def note(g):\n    found.append(current_source())\n    return g\n", "<string>", "exec"), names)
    note = names["note"]
    Noted.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert found[0].function == "backward"


def test_a_thread_without_a_line_of_the_user_names_what_the_main_thread_does() -> None:
    found: list[Source] = []
    names: dict[str, Any] = {"current_source": current_source, "found": found}
    exec(compile("def run():\n    found.append(current_source())\n", "<string>", "exec"), names)
    thread = threading.Thread(target=names["run"])
    thread.start()
    thread.join()
    assert found[0].function == "test_a_thread_without_a_line_of_the_user_names_what_the_main_thread_does"


def raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011
        function()
    return info.value


def test_a_traceback_names_the_users_innermost_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> object:
        return torch.zeros(2) + torch.zeros(3)

    def inner() -> object:
        return wrong()

    assert traceback_source(raised(inner).__traceback__).function == "wrong"
    names = installed("def fit(step):\n    return step()\ndef fail():\n    raise ValueError\n", monkeypatch)
    assert traceback_source(raised(lambda: names["fit"](wrong)).__traceback__).function == "wrong"
    assert traceback_source(raised(lambda: names["fail"]()).__traceback__).function == "<lambda>"
    assert traceback_source(None) == UNKNOWN_SOURCE


@pytest.mark.slow
def test_a_virtual_environment_inside_the_project_is_not_the_users_code(tmp_path: Path) -> None:
    """As it is here: the interpreter's packages lie below the folder of the program."""
    program = tmp_path / "train.py"
    program.write_text("from simcoll.recorder.source import current_source\nprint(current_source().file)\n")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == str(program)
