"""Where work is spread: addresses, what comes back, what is said when something does not; on real clusters too."""

from __future__ import annotations

import os
import socket
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from benchmarks.verify_boxes import Job, write_job
from simcoll.blackbox.gather import gather
from simcoll.cli.records import judged
from simcoll.core import executors
from simcoll.core.executors import Spread, opened
from simcoll.errors import ExecutorError, UsageError
from simcoll.plan.model_files import model_named
from simcoll.plan.rates import Framework
from simcoll.plan.search import search
from simcoll.simulation.explore import explore
from simcoll.topology.clusters import cluster as servers
from tests.support import engines


def in_threads(count: int = 2) -> Spread:
    return Spread(ThreadPoolExecutor(count), "here", lambda: count)


def refuse(item: int) -> int:
    if item == 3:
        raise UsageError("3 is not wanted")
    return item


def fail(item: int) -> int:
    raise KeyError(f"no {item}")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nowhere", "expected tcp://HOST:PORT"),
        ("tcp:8786", "expected tcp://HOST:PORT"),
        ("local:none", "expected local, or local:N"),
        ("local:0", "expected local, or local:N"),
        ("slurm:cores", "expected NAME=VALUE"),
    ],
)
def test_an_address_that_names_nothing_is_refused(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("distributed", "dask_jobqueue"):
        monkeypatch.setitem(sys.modules, name, sys)
    with pytest.raises(ExecutorError, match=said) as caught, opened(address):
        pass
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("address", "module", "extra"),
    [("tcp://h:1", "distributed", "dask"), ("ray", "ray", "ray"), ("slurm:cores=1", "distributed", "slurm")],
)
def test_an_engine_that_is_not_installed_is_named(
    address: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExecutorError, match=rf"pip install 'simcoll\[{extra}\]'") as caught, opened(address):
        pass
    assert caught.value.code == 2


class _NoRay(types.ModuleType):
    """Ray's package, which says that it was asked."""

    def init(self, **_: object) -> None:
        raise RuntimeError("asked")


def test_ray_is_asked_once_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", _NoRay("ray"))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        connect, refused = socket.create_connection, list[OSError]()

        def connect_or_listen(*arguments: Any) -> socket.socket:
            try:
                return connect(*arguments)
            except OSError as error:
                refused.append(error)
                server.listen()
                raise

        monkeypatch.setattr(socket, "create_connection", connect_or_listen)
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ExecutorError, match="RuntimeError: asked"), opened(address):
            pass
    assert len(refused) == 1


def test_a_port_at_which_nobody_listens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", _NoRay("ray"))
    monkeypatch.setattr(executors, "_LISTEN_SECONDS", 0.0)
    said, address = "no Ray cluster can be reached: ConnectionRefused", f"ray://127.0.0.1:{engines.free_port()}"
    with pytest.raises(ExecutorError, match=said) as caught, opened(address):
        pass
    assert caught.value.code == 2


def test_few_items_are_taken_ahead_of_what_runs() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    for ended, _ in enumerate(in_threads().results(abs, items())):
        assert len(taken) <= ended + 4 + 1
    assert len(taken) == 100


def test_what_a_task_raises_is_said() -> None:
    with pytest.raises(UsageError, match="3 is not wanted"):
        list(in_threads().results(refuse, range(5)))
    with pytest.raises(ExecutorError, match=r"--executor here: KeyError: 'no [0-4]'") as caught:
        list(in_threads().results(fail, range(5)))
    assert caught.value.code == 1


@pytest.mark.slow
def test_processes_of_this_machine_share_the_work() -> None:
    with opened("local:2") as spread:
        assert dict(spread.results(abs, range(-9, 0))) == {item: -item for item in range(-9, 0)}
        assert os.getpid() not in dict(spread.results(engines.own_process, range(4))).values()
        with pytest.raises(ExecutorError, match="--executor local:2: BrokenProcessPool"):
            list(spread.results(engines.end_process, range(2)))


@pytest.fixture(scope="module", params=engines.ENGINES)
def there(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    with engines.cluster(request.param, tmp_path_factory.mktemp("cluster")) as address, opened(address) as spread:
        yield spread


@pytest.mark.slow
def test_files_are_read_on_a_cluster_though_a_worker_is_killed(there: Spread, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    write_job(Job("skipped", 160, 50), folder)
    (folder / "rank00007.simcoll").write_bytes(b"SIMCOLL\x1a damaged")
    here = gather([folder])
    process = next(iter(there.results(engines.own_process, [0])))[1]
    told: list[int] = []

    def tell(done: int, total: int) -> None:
        if not told:
            os.kill(process, 9)
        told.append(done)

    found = gather([folder], spread=there, progress=tell)
    assert len(told) > 2
    assert judged(found)[0] == judged(here)[0]
    assert (found.unreadable, found.notes) == (here.unreadable, here.notes)
    assert len(found.traces) == len(here.traces) == 159


@pytest.mark.slow
def test_a_task_whose_worker_dies_is_repeated_and_one_that_kills_all_is_named(there: Spread, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    assert list(there.results(engines.end_process_once, [mark])) == [(mark, mark)]
    with pytest.raises(ExecutorError, match=f"--executor {there.address}: [A-Za-z]*(Killed|Died|Crash)") as caught:
        list(there.results(engines.end_process, [0]))
    assert caught.value.code == 1


def steals(comm: object) -> None:
    number = np.zeros(1)
    if comm.rank:
        comm.send(number, 0)
    else:
        comm.recv(number)
        comm.recv(number, 2)


@pytest.mark.slow
def test_schedules_and_layouts_are_tried_on_a_cluster_as_they_are_here(there: Spread) -> None:
    here, found = explore(steals, 3, 40), explore(steals, 3, 40, spread=there)
    assert (found.tried, found.failed, found.schedule) == (here.tried, here.failed, here.schedule)
    assert here.failing is not None
    assert found.failing.findings == here.failing.findings
    model, topology, fixed = model_named("llama3-8b"), servers(gpu="h100", nodes=4), {"seq_len": 8192}
    assert isinstance(topology, nx.DiGraph)
    framework = Framework("torchtitan")
    assert search(model, topology, framework, fixed, spread=there) == search(model, topology, framework, fixed)
