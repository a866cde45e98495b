"""``simcoll metrics``: a job's metrics as a file and over HTTP, scraped by a real Prometheus, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from simcoll.blackbox import BlackBoxWriter, Slot, read_black_box
from simcoll.cli import main
from simcoll.cli.metrics import parsed_address
from simcoll.core.record import Group, Source, State
from simcoll.errors import UsageError
from simcoll.live.metrics import LATEST_RANKS, JobCollector, WorkByOp
from simcoll.live.watch import JobWatch
from tests.support.jobs import all_reduce, write_job, write_job_that_waits

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, time, torch, torch.distributed as dist, simcoll
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(1024)
for step in range(4000):
    time.sleep(0.05 if rank == 1 else 0.005)
    dist.all_reduce(tensor)
    simcoll.step()
    if step == 300 and rank == 1 and sys.argv[1] == "hang":
        time.sleep(600)
"""
SECONDS = 120


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of a page by their names and labels."""
    families = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def written(folder: Path, path: Path, *options: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    assert main(["metrics", str(folder), "--textfile", str(path), "--once", *options]) == 0
    return values(path.read_text())


def test_a_file_of_a_job_that_ended_well(tmp_path: Path) -> None:
    write_job(tmp_path / "job")
    path = tmp_path / "job.prom"
    found = written(tmp_path / "job", path)
    assert found["simcoll_job_state", (("state", "ended"),)] == 1
    assert found["simcoll_job_state", (("state", "moving"),)] == 0
    assert found["simcoll_ranks_expected", ()] == 4
    assert found["simcoll_ranks", (("doing", "ended"),)] == 4
    calls = {labels[0][1]: value for (name, labels), value in found.items() if name == "simcoll_calls_total"}
    watch = JobWatch(tmp_path / "job")
    job = watch.look()
    assert job is not None
    assert sum(calls.values()) == sum(one.calls for one in job.ranks)
    boxes = [read_black_box(tail.path) for tail in watch.tails]
    assert calls == Counter(box.record(row).call.op for box in boxes for row in range(len(box.slots)))
    assert all(re.fullmatch(r"simcoll_[a-z_]+", name) for name, _ in found)
    assert [one.name for one in tmp_path.iterdir() if "prom" in one.name] == ["job.prom"]


def test_findings_and_bytes_are_counted(tmp_path: Path) -> None:
    write_job(tmp_path / "job", wrong=[1])
    found = written(tmp_path / "job", tmp_path / "job.prom")
    assert found["simcoll_findings", (("code", "SC104"), ("severity", "error"))] == 1
    assert found["simcoll_bytes_total", (("op", "all_reduce"),)] > 0


def test_a_job_that_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job_that_waits(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch._is_there", lambda pid: True)
    watch = JobWatch(tmp_path / "job", 0.1)
    registry = CollectorRegistry()
    registry.register(JobCollector(watch))
    generate_latest(registry)
    time.sleep(0.3)
    found = values(generate_latest(registry).decode())
    assert found["simcoll_job_state", (("state", "standing"),)] == 1
    assert found["simcoll_group_waiting_seconds", (("group", "default_pg"),)] > 0


def test_no_metric_is_there_before_the_job(tmp_path: Path) -> None:
    assert written(tmp_path, tmp_path / "job.prom") == {}


def test_calls_that_the_window_has_lost_are_counted(tmp_path: Path) -> None:
    box = BlackBoxWriter(tmp_path / "rank00000.simcoll", rank=0, world_size=1, mode="record", records=16)
    group = box.group(Group("0", "default_pg", (0,)))
    signature, source = box.signature(all_reduce(8)), box.source(Source("a.py", 1, "f"))
    work, watch = WorkByOp(), JobWatch(tmp_path)
    for total in (5, 105, 105, 1_000):
        while box._next < total:
            box.advance(box.schedule(Slot(group, box._next + 1, signature, source, state=State.STARTED)))
        watch.look()
        work.add(watch.tails)
        assert work.calls == {"all_reduce": total}
        assert work.bytes == {"all_reduce": total * 32}
    found = written(tmp_path, tmp_path / "job.prom")
    assert found["simcoll_overwritten_records_total", ()] == 1_000 - 16


@pytest.mark.slow
def test_a_large_job_has_few_series(tmp_path: Path) -> None:
    members = tuple(range(600))
    for rank in members:
        box = BlackBoxWriter(tmp_path / f"rank{rank:05d}.simcoll", rank=rank, world_size=600, mode="record", records=16)
        group = box.group(Group("0", "default_pg", members))
        for number in range(1, 5):
            line = box.source(Source("a.py", 1, "f"))
            box.advance(box.schedule(Slot(group, number, box.signature(all_reduce(8)), line, state=State.STARTED)))
            time.sleep(0.002 if number == 1 else 0)
        box.close()
    found = written(tmp_path, tmp_path / "job.prom")
    of_ranks = [labels for name, labels in found if name == "simcoll_rank_late_ratio"]
    assert 0 < len(of_ranks) <= LATEST_RANKS
    assert len(found) < 300


@pytest.mark.parametrize(
    ("text", "address"),
    [("0.0.0.0:9464", ("0.0.0.0", 9464)), (":80", ("127.0.0.1", 80)), ("[::1]:9", ("::1", 9)), ("node:0", ("node", 0))],
)
def test_an_address(text: str, address: tuple[str, int]) -> None:
    assert parsed_address(text) == address


@pytest.mark.parametrize("text", ["", "9464", "host", "host:", "host:x", "host:70000", "host:-1", "host:999999999999"])
def test_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="expected ADDRESS:PORT, such as"):
        parsed_address(text)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 2, "give --listen ADDRESS:PORT, --textfile PATH, or both"),
        (["--listen", "nowhere"], 2, "expected ADDRESS:PORT"),
        (["--textfile", "x.prom", "--interval", "0"], 2, "--interval 0: expected seconds"),
        (["--textfile", "x.prom", "--interval", "nan"], 2, "--interval nan: expected seconds"),
        (["--listen", ":0", "--once"], 2, "--once writes a file and ends"),
        (["--textfile", "no-such-folder/x.prom", "--once"], 1, "No such file or directory; give a file in a folder"),
        (["--listen", "203.0.113.1:9464"], 1, "give an address of this host and a free port"),
    ],
    ids=str,
)
def test_what_is_refused(
    tmp_path: Path, options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", str(tmp_path), *options]) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_port_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["metrics", str(tmp_path), "--listen", f":{taken.getsockname()[1]}"]) == 1
    assert "Address already in use" in capsys.readouterr().err


def test_without_the_extra_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["metrics", str(tmp_path), "--listen", ":0"]) == 1
    assert "pip install 'simcoll[metrics]'" in capsys.readouterr().err


def test_the_page_and_the_dashboard_name_the_metrics_that_exist(tmp_path: Path) -> None:
    names = set()
    write_job(tmp_path / "job")
    (tmp_path / "steps").mkdir()
    box = BlackBoxWriter(tmp_path / "steps" / "x.simcoll", rank=0, world_size=1, mode="record", records=16)
    box.step()
    box.step()
    for folder in ("job", "steps"):
        registry = CollectorRegistry()
        registry.register(JobCollector(JobWatch(tmp_path / folder)))
        text = generate_latest(registry).decode()
        names |= {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert set(re.findall(r"`(simcoll_\w+)", page)) == names
    dashboard = json.loads((ROOT / "docs" / "grafana" / "simcoll.json").read_text())
    asked = [one["expr"] for panel in dashboard["panels"] for one in panel["targets"]]
    used = {name for text in asked for name in re.findall(r"simcoll_\w+", text)}
    assert used <= names
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) >= 10


@contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, text=True, start_new_session=True, **options)
    try:
        yield process
    finally:
        if process.stderr is not None:
            process.stderr.close()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@contextmanager
def scraped(folder: Path, tmp_path: Path) -> Iterator[Callable[[str], dict[str, float]]]:
    """Prometheus that scrapes ``simcoll metrics``; gives a query's values by their labels."""
    metrics = [sys.executable, "-m", "simcoll", "metrics", str(folder), "--listen", "127.0.0.1:0"]
    with running(*metrics, stderr=subprocess.PIPE) as serving, socket.create_server(("127.0.0.1", 0)) as free:
        assert serving.stderr is not None
        target = re.search(r"http://(\S+)/metrics", serving.stderr.readline())
        assert target is not None
        port = free.getsockname()[1]
        free.close()
        (tmp_path / "prometheus.yml").write_text(
            "scrape_configs:\n  - job_name: llama\n    scrape_interval: 500ms\n    scrape_timeout: 500ms\n"
            f"    static_configs:\n      - targets: ['{target[1]}']\n"
        )
        prometheus = [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
        ]

        def query(text: str) -> dict[str, float]:
            address = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": text})
            try:
                with urllib.request.urlopen(address, timeout=10) as answer:
                    found = json.load(answer)["data"]["result"]
            except OSError:
                return {}
            plain = ("__name__", "instance", "job")
            return {
                ",".join(text for name, text in sorted(one["metric"].items()) if name not in plain): float(
                    one["value"][1]
                )
                for one in found
            }

        with running(*prometheus, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            yield query


def until(ask: Callable[[], dict[str, float]], holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    limit = time.monotonic() + SECONDS
    while time.monotonic() < limit:
        if holds(found := ask()):
            return found
        time.sleep(0.3)
    raise AssertionError(f"not seen in {SECONDS} s; last: {found}")


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed")
@pytest.mark.parametrize("kind", ["slow", "hang"])
def test_prometheus_sees_a_real_job(tmp_path: Path, kind: str) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "out"
    program.write_text(PROGRAM)
    folder.mkdir()
    run = [sys.executable, "-m", "simcoll", "run", "--mode", "record", "--nproc-per-node", "3", "--out", str(folder)]
    with (
        running(*run, str(program), kind, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
        scraped(folder, tmp_path) as query,
    ):
        late = until(lambda: query("simcoll_rank_late_ratio"), lambda found: found.get("1", 0.0) > 0.3)
        assert late["0"] < 0.2 > late["2"]
        assert query('simcoll_job_state{state="moving"}') == {"moving": 1.0}
        until(lambda: query("simcoll_steps_total"), lambda found: found.get("", 0.0) > 20)
        until(lambda: query("rate(simcoll_bytes_total[10s])"), lambda found: found.get("all_reduce", 0.0) > 4096)
        assert query("simcoll_findings") == {}
        if kind == "hang":
            until(lambda: query('simcoll_job_state{state="standing"}'), lambda found: found == {"standing": 1.0})
            until(lambda: query("simcoll_findings"), lambda found: [*found] == ["SC201,warning"])
            until(lambda: query("simcoll_group_waiting_seconds"), lambda found: found["default_pg"] > 1)
