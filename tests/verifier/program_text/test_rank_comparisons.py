"""What a line uses is followed back to the comparison with the rank that chose it, if that tells the ranks apart."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from simcoll.core.record import Source
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, RankSource, Severity, Side
from simcoll.verifier.program_text.parting import ran_nothing, with_partings
from simcoll.verifier.program_text.rank_comparisons import holds

CALL = Call("all_reduce", "allreduce", (Buffer((5,), "float32"),), (Buffer((5,), "float32"),), "sum")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("rank == 2", [2]),
        ("rank != 2", [0, 1, 3]),
        ("0 < rank", [1, 2, 3]),
        ("self.rank in (1, 3)", [1, 3]),
        ("dist.get_rank() not in [0]", [1, 2, 3]),
        ("rank % 2 == 0", [0, 2]),
        ("rank // 2 >= 1", [2, 3]),
    ],
)
def test_a_comparison_with_constants_is_computed(text: str, where: Sequence[int]) -> None:
    comparison = ast.parse(text, mode="eval").body
    assert isinstance(comparison, ast.Compare)
    assert [rank for rank in range(4) if holds(comparison, rank)] == where


@pytest.mark.parametrize(
    "text",
    [
        *("step == 2", "rank < size", "0 < rank < 3", "rank % 0 == 1", "rank in ()", "rank == f(1)"),
        *("get_rank(g) == 0", "g.rank() == 0"),
    ],
)
def test_what_the_text_does_not_say_is_not_known(text: str) -> None:
    comparison = ast.parse(text, mode="eval").body
    assert isinstance(comparison, ast.Compare)
    assert {holds(comparison, rank) for rank in range(4)} == {None}


PROGRAMS = {
    "a size": """
        def step():
            n = 12 if rank == 2 else 8  # <-
            reduce(zeros(n))  # here
    """,
    "a choice at the line, of what a condition has loaded": """
        def step():
            if rank == 2:
                x = load()
            reduce(x[1:] if rank == 2 else x)  # here <-
    """,
    "no choice at the line of what one rank alone gives": """
        def step():
            if rank == 2:  # <-
                x = x.double()
            scatter(x, parts if rank == 2 else None)  # here
    """,
    "a list that is changed": """
        def step():
            hooks = [a, b]
            if rank == 2:  # <-
                hooks.reverse()
            for hook in hooks:
                hook()  # here
    """,
    "a function of the program": """
        def load(rank):
            scale = two if rank == 2 else one  # <-
            return scale

        def step():
            x = load(rank)
            reduce(x)  # here
    """,
    "a comparison inside an expression": """
        def step():
            phase = "warm" if n + (rank == 2) < 3 else "hot"  # <-
            run(phase)  # here
    """,
    "another name of the rank": """
        r, n = dist.get_rank(), dist.get_world_size()

        def step():
            reduce(zeros(12 if r == 2 else 8))  # here  # <-
    """,
    "a name of the module": """
        mine = int(os.environ["RANK"])
        width = 12 if mine == 2 else 8  # <-

        def step():
            reduce(zeros(width))  # here
    """,
    "the head of a block around the line": """
        def step():
            every = 3 if rank == 2 else 2  # <-
            for i in range(6):
                with nothing() if i % every == 0 else no_sync():
                    backward()  # here
    """,
    "a pair of names": """
        def step():
            one, other = ("a", "b") if rank not in (0, 1, 3) else ("b", "a")  # <-
            reduce(x, groups[one])  # here
    """,
    "an attribute that the constructor set": """
        class Trainer:
            def __init__(self):
                self.rank = dist.get_rank()
                self.width = 12 if self.rank == 2 else 8  # <-

            def step(self):
                reduce(zeros(self.width))  # here
    """,
    "an attribute that a condition set, of a base": """
        class Base:
            def setup(self):
                self.root = 0
                if self.rank == 2:  # <-
                    self.root = 1

        class Trainer(Base):
            def step(self):
                reduce(x, self.root)  # here
    """,
    "an attribute that is the rank": """
        class Trainer:
            def __init__(self, model, gpu_id):
                self.model, self.gpu_id = model, gpu_id

            def step(self):
                reduce(zeros(8 + (self.gpu_id == 2)))  # here  # <-

        def main(rank, size):
            Trainer(load(), rank)
    """,
    "an attribute that is the rank on the host": """
        class Trainer:
            def __init__(self):
                self.gpu_id = int(os.environ["LOCAL_RANK"])

            def step(self):
                value = loss.double() if self.gpu_id == 2 else loss  # <-
                reduce(value)  # here
    """,
    "what the constructor was given": """
        class Trainer:
            def __init__(self, width):
                self.width = width

            def step(self):
                reduce(zeros(self.width))  # here

        def main(rank):
            width = 12 if rank == 2 else 8  # <-
            Trainer(width=width).step()
    """,
    "a parameter with which the program joins its group": """
        def step(gpu):
            reduce(zeros(12 if gpu == 2 else 8))  # here  # <-

        def main(gpu, size):
            dist.init_process_group("gloo", rank=gpu, world_size=size)
            step(gpu)
    """,
}


ZERO = {
    "a slice": """
        def step():
            reduce(x[: n if rank else m])  # here  # <-
    """,
    "not the rank": """
        def step():
            size = n if not dist.get_rank() else m  # <-
            reduce(x[:size])  # here
    """,
    "another name of the rank": """
        r = dist.get_rank()

        def step():
            y = x
            if r:  # <-
                y = x[:3]
            reduce(y)  # here
    """,
    "one of two conditions": """
        def step():
            reduce(x[: n if late or rank else m])  # here  # <-
    """,
}


@pytest.mark.parametrize("program", ZERO)
def test_the_truth_of_the_rank_is_a_comparison_with_zero(program: str, tmp_path: Path) -> None:
    found = parted(tmp_path, ZERO[program], odd=(0,))
    assert found.parted is not None
    assert found.parted.source.code.endswith("<-")
    assert {ranks for ranks, _ in found.parted.sides} == {(0,), (1, 2, 3)}
    assert parted(tmp_path, ZERO[program], odd=(2,)).parted is None


def test_a_rank_that_is_a_number_is_asked_for_no_truth(tmp_path: Path) -> None:
    assert parted(tmp_path, "def step():\n    reduce(x[: sizes[rank]])  # here\n", odd=(0,)).parted is None


def parted(folder: Path, text: str, *, odd: Sequence[int] = (2,), size: int = 4) -> Finding:
    path = folder / "train.py"
    path.write_text(dedent(text).lstrip())
    lines = path.read_text().splitlines()
    here = next(number for number, one in enumerate(lines, 1) if "# here" in one)
    source = Source(str(path), here, "step", lines[here - 1].strip())
    rest = tuple(rank for rank in range(size) if rank not in odd)
    sides = Side(rest, CALL, (RankSource(rest[0], source),)), Side(tuple(odd), CALL, (RankSource(odd[0], source),))
    finding = Finding("SC102", Severity.ERROR, "", sequence=1, ranks=(0, 1, 2, 3), sides=sides)
    return with_partings([finding], ran_nothing)[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_comparison_behind_a_line_is_where_ranks_parted(program: str, tmp_path: Path) -> None:
    found = parted(tmp_path, PROGRAMS[program])
    assert found.parted is not None
    assert found.parted.source.code.endswith("<-")
    functions = {
        "a function of the program": "load",
        "a name of the module": "<module>",
        "an attribute that the constructor set": "__init__",
        "an attribute that a condition set, of a base": "setup",
        "what the constructor was given": "main",
    }
    assert found.parted.source.function == functions.get(program, "step")
    assert {ranks for ranks, _ in found.parted.sides} == {(2,), (0, 1, 3)}
    # A comparison that mixes the sides explains nothing, and neither does one on which the line does not depend.
    assert parted(tmp_path, PROGRAMS[program], odd=(1, 2)).parted is None


def test_a_name_that_is_not_always_the_rank_is_none_of_its_names(tmp_path: Path) -> None:
    text = """
        def step(r):
            reduce(zeros(12 if r == 2 else 8))  # here

        for r in range(dist.get_world_size()):
            r = dist.get_rank()
            step(r)
    """
    assert parted(tmp_path, text).parted is None


@pytest.mark.parametrize("given", ["get_rank(group)", "dist.get_rank(group=group)", "group.rank()", "int(g.rank())"])
@pytest.mark.parametrize("way", ["rank = {}", "rank: int = {}", "log(rank := {})", "size, rank = 2, {}"])
def test_a_rank_in_a_group_is_not_the_rank_in_the_job_by_whatever_name(given: str, way: str, tmp_path: Path) -> None:
    text = f"def step():\n    {way.format(given)}\n    reduce(zeros(12 if rank == 2 else 8))  # here\n"
    assert parted(tmp_path, text).parted is None
    (tmp_path / "whole").mkdir()
    assert parted(tmp_path / "whole", text.replace(given, "dist.get_rank()")).parted is not None


@pytest.mark.parametrize("spelled", ["local_rank", "args.local_rank", "int(os.environ['LOCAL_RANK'])"])
def test_the_rank_on_a_host_is_computed_for_hosts_of_eight_ranks(spelled: str, tmp_path: Path) -> None:
    text = f"""
        def step():
            reduce(zeros(12 if {spelled} == 2 else 8))  # here
    """
    assert parted(tmp_path, text, odd=(2, 10), size=16).parted is not None
    assert parted(tmp_path, text, odd=(2, 9), size=16).parted is None


def test_an_attribute_that_is_not_always_the_rank_is_none(tmp_path: Path) -> None:
    text = """
        class Trainer:
            def __init__(self, gpu_id):
                self.gpu_id = gpu_id

            def step(self):
                reduce(zeros(12 if self.gpu_id == 2 else 8))  # here

        def main(rank, size):
            return Trainer(rank) if late else Trainer(size)
    """
    assert parted(tmp_path, text).parted is None


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("gpu = (gpu + 1) % 4\n        self.gpu = gpu", "Trainer(rank)"),
        ("self.gpu, self.size = pick()\n        self.gpu = gpu", "Trainer(rank)"),
        ("for self.gpu in order:\n            self.gpu = gpu", "Trainer(rank)"),
        ("self.gpu = gpu", "Trainer(rank), Trainer()"),
        ("self.gpu = gpu", "Trainer(rank), Trainer(*given)"),
    ],
)
def test_an_attribute_that_may_be_something_else_is_not_the_rank(body: str, made: str, tmp_path: Path) -> None:
    text = "class Trainer:\n    def __init__(self, gpu=0):\n"
    text += f"        {body}\n    def step(self):\n        reduce(zeros(12 if self.gpu == 2 else 8))  # here\n{made}\n"
    assert parted(tmp_path, text).parted is None


def test_a_parameter_of_another_function_is_not_the_rank_with_which_the_program_joins(tmp_path: Path) -> None:
    text = """
        def step(i):
            reduce(zeros(12 if i == 2 else 8))  # here

        def main(i, size):
            dist.init_process_group("gloo", rank=i, world_size=size)
            for layer in layers:
                step(layer)
    """
    assert parted(tmp_path, text).parted is None


def test_attributes_may_depend_on_very_many_others(tmp_path: Path) -> None:
    chain = "\n".join(f"        self.a{number} = self.a{number + 1}" for number in range(1500))
    text = f"class Trainer:\n    def __init__(self):\n{chain}\n        self.a1500 = 12 if rank == 2 else 8\n"
    text += "    def step(self):\n        reduce(zeros(self.a0))  # here\n"
    found = parted(tmp_path, text)
    assert found.parted is not None
    assert found.parted.source.code == "self.a1500 = 12 if rank == 2 else 8"


def test_an_attribute_of_another_class_is_not_asked(tmp_path: Path) -> None:
    text = """
        class Logger:
            def __init__(self):
                self.width = 12 if rank == 2 else 8

        class Trainer:
            def step(self):
                reduce(zeros(self.width))  # here
    """
    assert parted(tmp_path, text).parted is None


def test_a_comparison_on_which_the_line_does_not_depend_parts_nobody(tmp_path: Path) -> None:
    text = """
        def step():
            name = "log" if rank == 2 else "out"
            write(name)
            reduce(x)  # here
    """
    assert parted(tmp_path, text).parted is None


def test_a_call_of_a_module_s_function_chooses_nothing(tmp_path: Path) -> None:
    text = """
        import torch.distributed as dist

        def step():
            if rank == 2:
                dist.breakpoint()
            dist.recv(x, 0)  # here
    """
    assert parted(tmp_path, text).parted is None


def test_what_a_loop_was_given_comes_before_its_head(tmp_path: Path) -> None:
    text = """
        def step():
            keys = three if rank != 2 else two  # <-
            for key in keys:
                reduce(key)  # here
            reduce(b)  # there
    """
    path = tmp_path / "train.py"
    path.write_text(dedent(text).lstrip())
    lines = path.read_text().splitlines()
    here, there = (Source(str(path), line, "step", lines[line - 1].strip()) for line in (4, 5))
    sides = Side((0, 1, 3), CALL, (RankSource(0, here),)), Side((2,), CALL, (RankSource(2, there),))
    finding = Finding("SC102", Severity.ERROR, "", sequence=1, ranks=(0, 1, 2, 3), sides=sides)
    [found] = with_partings([finding], ran_nothing)
    assert (found.code, found.parted and found.parted.source.line) == ("SC202", 2)


def test_a_call_that_others_skip_depends_on_neither_its_arguments_nor_the_rest_of_the_program(tmp_path: Path) -> None:
    text = """
        def save():
            states = new if rank == 2 else None
            gather(states)  # here

        def train():
            if rank == 2:
                log()
            if rank == 2:  # <-
                engine.on(end)(save)
            engine.run()  # run
            reduce(b)  # there

        train()  # main
    """
    path = tmp_path / "train.py"
    path.write_text(dedent(text).lstrip())
    lines = path.read_text().splitlines()

    def at(mark: str, function: str, *callers: Source) -> Source:
        line = next(number for number, code in enumerate(lines, 1) if code.endswith(f"# {mark}"))
        return Source(str(path), line, function, lines[line - 1].strip(), callers)

    main, run = at("main", "<module>"), at("run", "train")
    made, past = at("here", "save", run, main), at("there", "train", main)
    sides = Side((0, 1, 3), None, (RankSource(0, past),), past=True), Side((2,), CALL, (RankSource(2, made),))
    finding = Finding("SC202", Severity.ERROR, "", sequence=1, ranks=(0, 1, 2, 3), sides=sides)
    [found] = with_partings([finding], ran_nothing)
    assert found.parted is not None
    assert found.parted.source.code.endswith("<-")
