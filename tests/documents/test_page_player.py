"""The player of pages must be able to fail: each planted fault is found, at its line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.page_output import difference
from tests.support.page_player import Fault, play, run_elsewhere
from tests.support.pages import PageError, read_page


def played(tmp_path: Path, text: str, limit: float = 30.0) -> list[Fault]:
    page = tmp_path / "planted.md"
    page.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
    return play(page, limit)


def fault(tmp_path: Path, text: str, limit: float = 30.0) -> Fault:
    [found] = played(tmp_path, text, limit)
    return found


FAULTY = {
    "wrong output": ("```console\n$ echo one two\none three\n```\n", 2, "shown:   one three"),
    "wrong text": ("```console\n$ echo one\n```\n\n```text\ntwo\n```\n", 5, "shown:   two"),
    "output after a gap": ("```console\n$ seq 3\n1\n...\n4\n```\n", 2, "shown:   4"),
    "lines left out without a gap": ("```console\n$ seq 3\n1\n3\n```\n", 2, "shown:   3\nprinted: 2"),
    "a part of a word": ("```console\n$ echo 11 errors\n1 errors\n```\n", 2, "shown:   1 errors"),
    "exit code": ("```console\n$ true\n$ (exit 3)\n```\n", 3, "exits with 3, expected 0"),
    "another exit code": ("<!-- exit: 3 -->\n```console\n$ (exit 2)\n```\n", 3, "exits with 2, expected 3"),
    "no exit code": ("<!-- exit: 3 -->\n```console\n$ true\n```\n", 2, "no command exits with 3"),
    "no program": ("```console\n$ simcol verify\n```\n", 2, "exits with 127"),
    "no option": ("```console\n$ simcoll verify --hmtl x .\n```\n", 2, "exits with 2"),
    "no prompt": ("```console\nsimcoll rules\n```\n", 2, "begins with `$ `"),
    "output before a command": ("```console\nhello\n$ true\n```\n", 2, "begins with `$ `"),
    "make target": ("```console\n$ make tests\n```\n", 2, "no make target tests"),
    "output of a make target": ("```console\n$ make demo\nfine\n```\n", 2, "is not run here"),
    "no language": ("```\nx\n```\n", 1, "no rule for a block in no language"),
    "unknown language": ("text\n\n```pyhton\nx = 1\n```\n", 3, "no rule for a block in pyhton"),
    "directive that shows code": ("```{code-block} python\nx = 1\n```\n", 1, "no rule"),
    "indented": ("text\n\n    x = 1\n", 3, "no rule for a block in (indented)"),
    "in a list": ("* one\n\n  ```pyhton\n  x\n  ```\n", 3, "no rule"),
    "text": ("words\n\n```text\na\n```\n", 3, "text that is no output"),
    "hidden command": ("<!-- run: false -->\n", 1, "exits with 1"),
    "toml": ("```toml\na = \n```\n", 1, "it is no toml"),
    "json": ("```json\n{'a': 1}\n```\n", 1, "it is no json"),
    "yaml": ("```yaml\na: [\n```\n", 1, "it is no yaml"),
    "xml": ("```xml\n<a>\n```\n", 1, "it is no xml"),
    "ini": ("```ini\na\n```\n", 1, "it is no ini"),
    "bash": ("```bash\nif\n```\n", 1, "it is no bash"),
    "python that is not run": ("<!-- not run: why -->\n```python\nx =\n```\n", 3, "it is no Python"),
    "python in a file": ("<!-- file: a.py -->\n```python\nx =\n```\n", 3, "it is no Python"),
    "file elsewhere": ("<!-- file: ../a.toml -->\n```toml\n```\n", 2, "cannot be the file"),
    "unknown need": ("<!-- needs: slrum -->\n```console\n$ true\n```\n", 2, "`needs: slrum` is unknown"),
    "exit of no command": ("<!-- exit: 1 -->\n```toml\n```\n", 2, "is for console blocks"),
    "misspelt note": ("<!-- exti: 1 -->\n```console\n$ true\n```\n", 0, "is no note"),
    "note without a reason": ("<!-- not run: -->\n```console\n$ false\n```\n", 0, "is no note"),
    "note above no block": ("<!-- exit: 1 -->\nwords\n", 0, "stands above no block"),
    "note at the end": ("<!-- exit: 1 -->\n", 0, "stands above no block"),
}


@pytest.mark.parametrize(("text", "line", "message"), FAULTY.values(), ids=FAULTY)
def test_a_fault_is_found_at_its_line(text: str, line: int, message: str, tmp_path: Path) -> None:
    found = fault(tmp_path, text)
    assert message in found.message
    assert found.line == line


@pytest.mark.slow
def test_python_that_raises_is_found(tmp_path: Path) -> None:
    page = "words\n\n```python\nx = 1\n```\n\nand\n\n```python\nassert x == 2\n```\n"
    found = fault(tmp_path, page)
    assert (found.line, "AssertionError" in found.message or "assert 1 == 2" in found.message) == (10, True)


@pytest.mark.slow
def test_a_test_of_a_page_that_fails_is_found(tmp_path: Path) -> None:
    page = "```python\ndef test_sum():\n    total = 1\n    assert total == 2\n```\n"
    found = fault(tmp_path, page)
    assert (found.line, "assert 1 == 2" in found.message) == (4, True)


@pytest.mark.slow
def test_a_finding_in_a_marked_test_is_found(tmp_path: Path) -> None:
    page = """
        ```python
        import numpy as np
        import pytest


        @pytest.mark.simcoll(world_size=3)
        def test_sum(comm):
            comm.all_reduce(np.ones(3 + comm.rank // 2))
        ```
    """
    assert "SC102" in fault(tmp_path, page).message


def test_a_process_that_outlives_the_page_is_named_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that left the session of its shell, as a launcher's ranks do."""
    monkeypatch.setattr("tests.support.page_shell.PATIENCE", 0.0)
    shown = "until grep -q sleep /proc/$!/cmdline; do :; done"  # until then it is a copy of the shell
    found = fault(tmp_path, f"```console\n$ setsid sleep 1234 & {shown}\n```\n")
    assert found.message.startswith("a process outlives the page: ")
    assert found.message.endswith("sleep 1234")


def test_a_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    found = fault(tmp_path, "```console\n$ echo begun; sleep 1234\n```\n", limit=0.1)
    assert found.line == 2
    assert "took too long" in found.message


def test_what_a_page_may_do(tmp_path: Path) -> None:
    """Files, folders, variables and jobs hold from one command to the next; comments, exits and gaps count."""
    page = """
        <!-- some other comment -->
        <!-- measured: of another tool -->

        words

        <!-- run: mkdir sub && echo hidden > sub/there -->

        <!-- file: sub/a.json -->
        ```json
        {"a": 1}
        ```

        ```console
        $ cd sub && ls
        a.json
        there
        $ export NAME=value  # a comment
        $ echo $NAME \\
              on two lines
        value on two lines
        $ sleep 1234 & echo $!
        ...
        $ kill $!
        $ ls /nowhere/at/all; ls ../examples
        ls: ...: No such file or directory
        ...
        training
        ```

        <!-- exit: 3 -->
        ```console
        $ seq 5
        $ bash -c 'echo "╭─ a box ─╮"; exit 3'
        ```

        ```text
        2 3
        ...
        a box
        ```

        <!-- run: seq 3 -->
        ```text
        2
        ```

        <!-- not run: it is for other machines -->
        ```console
        $ false
        ```

        ```text
        what it prints there
        ```

        1. In a list

           <!-- exit: 1 -->

           ```console
           $ pwd | grep sub || exit 5
           .../sub
           $ exit 1
           ```
        2. after which the shell is a new one

           ```console
           $ ls sub
           a.json
           ```
    """
    assert played(tmp_path, page) == []


@pytest.mark.parametrize(
    ("command", "elsewhere"),
    [
        ("make demo", ""),
        ("X=1 make test ARGS='-k a'", ""),
        ("pip install '.[torch]'  # all", ""),
        ("python -m pip install simcoll", ""),
        ("pip list", None),
        ("simcoll demo", None),
    ],
)
def test_what_is_run_elsewhere(command: str, elsewhere: str | None) -> None:
    assert run_elsewhere(command) == elsewhere


def test_any_text_may_be_no_text() -> None:
    assert difference("a ... b", "a b\n") is None
    assert difference("a ... b", "a x y b\n") is None
    assert difference("a ...\nb", "a x y\nb\n") is None
    assert difference("a ... b", "a\nx\ny\nb") is not None
    assert difference("at .../x.py:3", "at /tmp/x.py:3") is None


def test_a_line_that_a_box_breaks_is_one_line() -> None:
    assert difference("ranks 0 and 1 sent more", "│ ranks 0 and 1 │\n│   sent more   │") is None


def test_blocks_have_their_lines_and_notes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- needs: ray, slurm -->\n<!-- exit: 2 -->\n```console\n$ a\n```\n", encoding="utf-8")
    [block] = read_page(page)
    assert (block.line, block.needs, block.notes["exit"]) == (5, ("ray", "slurm"), "2")
    page.write_text("<!-- exti: 3 -->\n```console\n```\n", encoding="utf-8")
    with pytest.raises(PageError, match=r"line 1: .* there are \['exit'"):
        read_page(page)
