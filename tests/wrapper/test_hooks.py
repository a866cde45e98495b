"""Turning simcoll on and off: before or after init, by environment, for one group; and what a wrong mode says."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from simcoll.errors import CollectiveMismatchError, ConfigurationError

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import simcoll  # noqa: E402
from simcoll.recorder.session import active_session  # noqa: E402
from simcoll.wrapper.hooks import enable, wrap_process_group  # noqa: E402
from tests.support.calls import ones, summed  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def mismatch(group: Any = None) -> object:
    """What a mismatch raises: an op of each rank's own."""
    try:
        dist.all_reduce(ones(1 + dist.get_rank()), group=group)
    except RuntimeError as error:
        return type(error)
    return None


def test_an_unknown_mode_is_refused_with_those_that_exist() -> None:
    expected = "unknown mode 'detial': expected one of off, record, check, detail"
    for call in (lambda: enable("detial"), lambda: wrap_process_group(None, mode="detial")):
        with pytest.raises(ConfigurationError, match=expected):
            call()
    assert active_session() is None


def test_enabling_and_disabling_restores_every_name() -> None:
    names = ("ProcessGroup", "get_debug_level", "_create_process_group_wrapper")
    before = [getattr(dist.distributed_c10d, name) for name in names], sys.excepthook
    enable("record", "unused")
    enable("detail", "unused")
    assert dist.distributed_c10d.ProcessGroup is not before[0][0]
    simcoll.disable()
    assert ([getattr(dist.distributed_c10d, name) for name in names], sys.excepthook) == before
    simcoll.disable()
    assert not Path("unused").exists()


LEADER = """
import os, subprocess, sys
import torch
import torch.distributed as dist
if "LOCAL_RANK" not in os.environ:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
    follower = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
dist.init_process_group("gloo", rank=int(os.environ.get("LOCAL_RANK", "0")), world_size=2)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
if "LOCAL_RANK" not in os.environ:
    sys.exit(follower.wait())
"""


def test_a_rank_that_starts_the_others_shares_their_folder(tmp_path: Path) -> None:
    """As Lightning does: what names the folder is in the environment only after torch was imported."""
    (tmp_path / "train.py").write_text(LEADER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "SIMCOLL_MODE": "record"}
    subprocess.run([sys.executable, "train.py", port], cwd=tmp_path, env=environment, check=True, timeout=120)
    [folder] = (tmp_path / "simcoll-out").iterdir()
    assert folder.name == f"job-{port}"
    assert sorted(path.name for path in folder.glob("*.simcoll")) == ["rank00000.simcoll", "rank00001.simcoll"]


def late(ranks: Any, then: Callable[[int], object]) -> Callable[[int], object]:
    """Enable after init_process_group, with a subgroup that the program already holds."""

    def program(rank: int) -> object:
        half = dist.new_group([0, 1])
        before = dist.group.WORLD
        assert summed() == summed(half) == 2.0
        enable("detail", ranks.boxes)
        assert dist.group.WORLD is not before
        return then(rank), summed(), summed(half), summed(before)

    return program


def test_enabling_after_init_records_and_proves_the_default_group(ranks: Any) -> None:
    answers = ranks(late(ranks, lambda rank: mismatch()), mode=None)
    assert answers == [(CollectiveMismatchError, 2.0, 2.0, 2.0)] * 2
    assert len(ranks.records(0)) >= 2


def test_a_group_that_the_program_held_before_is_known_under_its_old_handle(ranks: Any) -> None:
    def then(rank: int) -> object:
        old = next(group for group in dist.distributed_c10d._world.pg_map if group is not dist.group.WORLD)
        held = old.plain
        return dist.get_process_group_ranks(held), dist.get_backend(held), dist.get_rank(held) == rank

    assert ranks(late(ranks, then), mode=None) == [(([0, 1], "gloo", True), 2.0, 2.0, 2.0)] * 2


@pytest.fixture(scope="module")
def warm() -> None:
    """What the constructor of a DDP model imports: seconds, once, before the ranks are forked."""
    importlib.import_module("torch._dynamo")


@pytest.mark.usefixtures("warm")
def test_a_model_wrapped_after_enabling_trains(ranks: Any) -> None:
    def then(rank: int) -> object:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        model(ones(1, 2) * rank).sum().backward()
        gradient = model.module.weight.grad
        assert gradient is not None
        return gradient.tolist()

    assert ranks(late(ranks, then), mode=None) == [([[0.5, 0.5]], 2.0, 2.0, 2.0)] * 2


def test_groups_go_on_working_when_simcoll_is_disabled(ranks: Any) -> None:
    def program(rank: int) -> object:
        group = dist.new_group()
        before = summed(group)
        simcoll.disable()
        later = dist.new_group()
        return before, summed(), summed(group), summed(later), type(later).__name__

    assert ranks(program) == [(2.0, 2.0, 2.0, 2.0, "ProcessGroup")] * 2


def wrapped(ranks: Any, make: Callable[[int], Any], **options: Any) -> list[Any]:
    def program(rank: int) -> object:
        group = wrap_process_group(make(rank), **{"mode": "detail", **options})
        error = ranks.error_of(lambda: group.allreduce([ones(1 + rank)]).wait())
        group.allreduce([tensor := ones(1)]).wait()
        return type(error), float(tensor), group.size(), group.rank() == rank

    answers: list[Any] = ranks(program, mode=None, SIMCOLL_OUT=str(ranks.boxes))
    return answers


def test_one_group_can_be_wrapped(ranks: Any) -> None:
    expected = [(CollectiveMismatchError, 2.0, 2, True)] * 2
    assert wrapped(ranks, lambda rank: dist.group.WORLD) == expected
    assert wrapped(ranks, lambda rank: dist.group.WORLD, timeout=timedelta(seconds=5)) == expected


def test_a_bare_backend_can_be_wrapped(ranks: Any) -> None:
    def program(rank: int) -> object:
        store = dist.PrefixStore("bare", dist.distributed_c10d._get_default_store())
        backend = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=10))
        bare = ranks.error_of(lambda: wrap_process_group(backend))
        group = wrap_process_group(backend, store=dist.PrefixStore("proof", store), timeout=timedelta(seconds=2))
        error = ranks.error_of(lambda: group.allreduce([ones(1 + rank)]).wait())
        group.broadcast([tensor := ones(1) * rank]).wait()
        missing = ranks.error_of(lambda: group.barrier().wait()) if rank == 0 else None
        dist.barrier()
        return str(bare), type(error), float(tensor), "2000 ms" in str(missing) or rank == 1

    answers = ranks(program, mode=None, SIMCOLL_OUT=str(ranks.boxes))
    expected = "a bare ProcessGroupGloo has no store of its own: give store="
    assert answers == [(expected, CollectiveMismatchError, 0.0, True)] * 2


def test_mode_off_gives_the_group_back() -> None:
    group = object()
    assert wrap_process_group(group, mode="off") is group
    enable("off")
    assert active_session() is None


@pytest.mark.usefixtures("warm")
def test_the_wrapper_of_detail_stays_out(ranks: Any) -> None:
    def program(rank: int) -> object:
        dist.new_group()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        model(ones(1, 2)).sum().backward()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        return mismatch(), type(backend).__name__, summed()

    ended = ranks.run(program, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert [rank.answer for rank in ended] == [(CollectiveMismatchError, "ProcessGroupGloo", 2.0)] * 2
    for rank in ended:
        said = [line for line in rank.output.splitlines() if line.startswith("simcoll:")]
        assert said == [
            "simcoll: TORCH_DISTRIBUTED_DEBUG=DETAIL is set: simcoll takes the place of its process-group wrapper"
        ]


def test_without_simcoll_detail_is_what_it_was(ranks: Any) -> None:
    def program(rank: int) -> object:
        simcoll.enable("record", ranks.boxes)
        simcoll.disable()
        group = dist.new_group()
        return type(group._get_backend(torch.device("cpu"))).__name__, mismatch(group)

    answers = ranks(program, mode=None, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert answers == [("_ProcessGroupWrapper", RuntimeError)] * 2


def test_ranks_forked_after_enabling_have_a_box_each(ranks: Any) -> None:
    """The process that enables need not be a rank; each of its children is one."""

    def program(_: int) -> object:
        pids = []
        for rank in range(2):
            pids.append(os.fork())
            if pids[-1] == 0:
                store = ranks.store("forked")
                dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=10))
                code = 0 if mismatch() is CollectiveMismatchError and summed() == 2.0 else 1
                os._exit(code)
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

    assert ranks(program, 1, backend=None) == [[0, 0]]
    assert [(ranks.box(rank).world_size, len(ranks.records(rank))) for rank in range(2)] == [(2, 2), (2, 2)]


def python(text: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
        check=False,
        timeout=120,
    )


def test_the_environment_activates_it_when_torch_is_imported(tmp_path: Path) -> None:
    text = "import torch.distributed as d; print(type(d.distributed_c10d.ProcessGroup).__name__)"
    done = python(text, tmp_path, SIMCOLL_MODE="record")
    assert (done.returncode, done.stdout, done.stderr) == (0, "_AnyProcessGroup\n", "")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_mode_in_the_environment_is_one_clear_line(tmp_path: Path) -> None:
    done = python("import torch; print('imported')", tmp_path, SIMCOLL_MODE="detial")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "simcoll: unknown mode 'detial': expected one of off, record, check, detail (SIMCOLL_MODE)\n"


def test_groups_wrapped_on_their_own_share_the_box_of_the_process(ranks: Any) -> None:
    def program(rank: int) -> object:
        summed()
        group = wrap_process_group(dist.group.WORLD, mode="record")
        group.allreduce([ones(1)]).wait()
        return summed()

    assert ranks(program) == [2.0] * 2
    assert len(ranks.records(0)) == 3


def test_a_process_that_enables_again_goes_on_in_its_box(ranks: Any) -> None:
    def program(rank: int) -> object:
        sums = [summed()]
        simcoll.disable()
        sums.append(summed())
        enable("detail", ranks.boxes)
        sums.append(summed(dist.new_group()))
        return sums

    assert ranks(program) == [[2.0] * 3] * 2
    assert [record.group for record in ranks.records(0)] == ["0", "1"]
    assert [event.kind for event in ranks.box(0).events] == [*["creating", "created"] * 2, "exit"]
