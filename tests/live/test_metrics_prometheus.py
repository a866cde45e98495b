"""A real Prometheus that scrapes a real Gloo job: a slow rank, then a hang, by its HTTP API."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest

from tests.live.test_metrics import DASHBOARD, expressions

pytest.importorskip("torch")
PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.gloo,
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here: apt-get install prometheus"),
]

PROGRAM = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(1000)
for step in range(100):
    time.sleep(0.05 if rank == 1 else 0.005)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
if rank == 1:
    time.sleep(600)
dist.all_reduce(tensor)
"""
SECONDS = 120


@pytest.fixture(scope="module")
def start():
    """Start a command; all are ended after the tests."""
    started = []

    def begin(*command, **options):
        started.append(subprocess.Popen(list(map(str, command)), text=True, start_new_session=True, **options))
        return started[-1]

    yield begin
    for process in reversed(started):
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def query(tmp_path_factory, start):
    """Ask a Prometheus that scrapes a job of three ranks; the answer's list of label sets and values."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "out").mkdir()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    simcoll = [sys.executable, "-m", "simcoll"]
    job = ["--mode", "detail", "--out", folder / "out", "--nproc-per-node", "3", folder / "program.py"]
    start(*simcoll, "run", *job, **quiet)
    exporter = start(
        *simcoll, "metrics", folder / "out", "--listen", "127.0.0.1:0", "--json", "--interval", "0.5",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    target = json.loads(exporter.stdout.readline())["listen"].removeprefix("http://").partition("/")[0]
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: simcoll, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    start(PROMETHEUS, *options, f"--web.listen-address={address}", **quiet)

    def ask(expression):
        url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        except OSError:
            return []
        return [(one["metric"], float(one["value"][1])) for one in said["data"]["result"]]

    return ask


def until(query, expression):
    """Ask until there is a result; the result."""
    limit = time.monotonic() + SECONDS
    while not (found := query(expression)):
        assert time.monotonic() < limit, f"{expression}: nothing in {SECONDS} s"
        time.sleep(0.5)
    return found


def test_a_hang_is_standing_and_its_finding_is_counted(query):
    until(query, 'simcoll_job_state{state="standing"} == 1')
    ((labels, count),) = until(query, "simcoll_findings > 0")
    assert (labels["code"], count) == ("SC201", 1)
    ((labels, count),) = until(query, "simcoll_rank_awaited_by_ranks")
    assert (labels["rank"], count) == ("1", 2)
    assert until(query, 'simcoll_ranks{doing="waits"}')[0][1] == 2


def test_the_slow_rank_was_visible_before(query):
    until(query, 'simcoll_job_state{state="standing"} == 1')
    late = {labels["rank"]: value for labels, value in until(query, "max_over_time(simcoll_rank_late_ratio[10m])")}
    assert late["1"] > 0.4 > 0.2 > max(late["0"], late["2"])
    waiting = {labels["rank"]: value for labels, value in query("max_over_time(simcoll_rank_waiting_ratio[10m])")}
    assert min(waiting["0"], waiting["2"]) > 0.4
    assert query('max_over_time(simcoll_job_state{state="moving"}[10m])')[0][1] == 1


def test_progress_is_counted(query):
    until(query, 'simcoll_job_state{state="standing"} == 1')
    ((labels, value),) = until(query, "simcoll_collectives_finished_total")
    assert (labels["group"], value) == ("default_pg", 200)
    assert until(query, "sum(simcoll_calls_total)")[0][1] == 3 * 200 + 2
    ((_, known),) = until(query, 'simcoll_calls_total{op="all_reduce"}')
    ((_, size),) = until(query, 'simcoll_call_bytes_total{op="all_reduce"}')
    assert size == 4000 * known
    assert until(query, "max_over_time(rate(simcoll_collectives_finished_total[10s])[1m:1s])")[0][1] > 0


def test_every_expression_of_the_dashboard_is_understood(query):
    until(query, 'simcoll_job_state{state="standing"} == 1')
    ((labels, _),) = until(query, "simcoll_job_info")
    answered = 0
    for expression in expressions(json.loads(DASHBOARD.read_text())):
        if "simcoll_" in expression and "label_values" not in expression:
            concrete = expression.replace("$instance", labels["instance"]).replace("$__rate_interval", "1m")
            assert not re.search(r"\$", concrete)
            answered += bool(query(concrete))
    assert answered >= 14
