"""``simcoll metrics``: served, written, refused; the exit codes of ``simcoll status``."""

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families as parsed

from simcoll.cli import main
from simcoll.cli.metrics import parse_address
from simcoll.errors import UsageError
from simcoll.live.metrics import METRICS
from simcoll.live.scrape_server import serve
from tests.support.jobs import write_job, write_job_that_waits


@pytest.fixture
def folder(tmp_path):
    write_job(tmp_path / "job")
    return tmp_path / "job"


@contextmanager
def served(folder, *options):
    """The address at which the command answers, and its process."""
    command = [sys.executable, "-m", "simcoll", "metrics", str(folder), "--listen", "127.0.0.1:0", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield json.loads(line)["listen"], process
        finally:
            process.kill()


def scraped(address, accept=""):
    with urllib.request.urlopen(urllib.request.Request(address, headers={"Accept": accept}), timeout=30) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def until(address, text):
    limit = time.monotonic() + 60
    while text not in (said := scraped(address)[0]):
        assert time.monotonic() < limit, said
        time.sleep(0.1)
    return said


@pytest.mark.parametrize(("wrong", "code"), [((), 0), ((1,), 3)])
def test_a_file_is_written_once(tmp_path, wrong, code):
    write_job(tmp_path / "job", wrong=wrong)
    assert main(["metrics", str(tmp_path / "job"), "--textfile", str(tmp_path / "job.prom"), "--once"]) == code
    said = (tmp_path / "job.prom").read_text()
    assert 'simcoll_job_state{state="ended"} 1.0' in said
    assert ("SC104" in said) == bool(wrong)
    assert {path.name for path in tmp_path.iterdir()} == {"job", "job.prom"}


def test_a_job_that_stands_is_written_with_its_exit_code(tmp_path, monkeypatch):
    write_job_that_waits(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: False)
    options = ["--textfile", str(tmp_path / "job.prom"), "--once", "--stall", "0.1"]
    assert main(["metrics", str(tmp_path / "job"), *options]) == 4
    assert 'simcoll_job_state{state="standing"} 1.0' in (tmp_path / "job.prom").read_text()


@pytest.mark.parametrize("file", [False, True])
def test_one_look_is_one_document(tmp_path, file, capsys):
    write_job(tmp_path / "job", wrong=[1])
    path = tmp_path / "job.prom"
    options = ["--textfile", str(path)] if file else []
    assert main(["metrics", str(tmp_path / "job"), "--once", "--json", *options]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["textfile"]) == ("simcoll.metrics/1", str(path) if file else None)
    assert list(document["metrics"]) == list(METRICS)
    assert document["metrics"]["simcoll_findings"] == [{"labels": {"code": "SC104", "severity": "error"}, "value": 1}]
    assert path.exists() == file


def test_one_look_is_text_on_stdout(folder, capsys):
    assert main(["metrics", str(folder), "--once"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("\n")
    assert {family.name.removesuffix("_total") for family in parsed(said)} == {
        name.removesuffix("_total") for name in METRICS
    }


def test_a_file_is_written_until_the_job_has_ended(tmp_path):
    write_job(tmp_path / "job", wrong=[1])
    options = ["--textfile", str(tmp_path / "job.prom"), "--interval", "0.1", "--linger", "0"]
    assert main(["metrics", str(tmp_path / "job"), *options]) == 3
    assert 'simcoll_findings{code="SC104",severity="error"} 1.0' in (tmp_path / "job.prom").read_text()


def test_a_reader_never_sees_half_a_file(tmp_path, folder):
    path, halves, done = tmp_path / "job.prom", [], threading.Event()

    def read():
        while not done.is_set():
            if path.exists() and not path.read_text().endswith("\n"):
                halves.append(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    main(["metrics", str(folder), "--textfile", str(path), "--interval", "0.01", "--linger", "0.5"])
    done.set()
    reader.join()
    assert halves == []


@pytest.mark.slow
def test_scrapes_are_answered_in_both_formats(folder):
    with served(folder) as (address, _):
        until(address, 'state="ended"} 1.0')
        said, kind = scraped(address)
        assert kind.startswith("text/plain")
        said, kind = scraped(address, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert said.endswith("# EOF\n")


def test_clients_that_say_or_read_nothing_are_given_up(monkeypatch, capfd):
    monkeypatch.setattr("simcoll.live.scrape_server._Handler.timeout", 0.2)
    registry = CollectorRegistry()
    Gauge("large", "More than a socket holds.", ["rank"], registry=registry).labels("x" * (1 << 24)).set(1)
    port = serve("127.0.0.1", 0, registry)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as unread:
        unread.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert unread.recv(1) == b"H"
        deadline = time.monotonic() + 60
        while any("process_request" in thread.name for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_job_may_start_after_its_metrics(tmp_path):
    (tmp_path / "out").mkdir()
    with served(tmp_path / "out", "--interval", "0.1") as (address, _):
        assert "simcoll_ranks{" not in scraped(address)[0]
        write_job(tmp_path / "out" / "job")
        until(address, 'simcoll_ranks{doing="ended"} 4.0')


@pytest.mark.slow
def test_the_command_ends_after_the_job(folder):
    with served(folder, "--linger", "1") as (address, process):
        until(address, 'state="ended"} 1.0')
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_signal_ends_it_without_a_traceback(folder):
    with served(folder) as (address, process):
        until(address, 'state="ended"} 1.0')
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read().split() == ["simcoll:", "interrupted"]


@pytest.mark.slow
def test_a_client_that_says_nothing_keeps_nobody_waiting(folder):
    with served(folder) as (address, _):
        host, port = re.search(r"//(.*):(\d+)/", address).groups()
        silent = [socket.create_connection((host, int(port))) for _ in range(20)]
        until(address, 'state="ended"} 1.0')
        for one in silent:
            one.close()


@pytest.mark.slow
def test_spans_reach_a_collector(tmp_path, monkeypatch):
    write_job_that_waits(tmp_path / "job")
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            zipped = self.headers.get("Content-Encoding") == "gzip"
            received.append((self.path, gzip.decompress(data) if zipped else data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        with served(tmp_path / "job", "--otel", "--stall", "0.1", "--interval", "0.1") as (address, process):
            until(address, 'state="standing"} 1.0')
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        collector.shutdown()
    ((path, data),) = received
    assert path == "/v1/traces"
    (span,) = ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans
    assert span.name == "all_reduce stands"
    assert span.end_time_unix_nano > span.start_time_unix_nano > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:0", ("::1", 0)), ("node-3.local:80", ("node-3.local", 80))],
)
def test_an_address(text, expected):
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text", ["", "9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "h:65536", "h:-1", "::1:80", "[]:80", "h:²"]
)
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="expected ADDRESS:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "say where the metrics go"),
        (("--once", "--listen", "127.0.0.1:0"), "--once does not go with --listen"),
        (("--listen", "127.0.0.1:0", "--textfile", "a", "--once"), "--once does not go with --listen"),
        (("--listen", "nowhere"), "expected ADDRESS:PORT"),
        (("--listen", f"{'a' * 70}.example:0"), "--listen aaa"),
        (("--textfile", "no-folder/job.prom"), "No such file or directory"),
        (("--textfile", "a.prom", "--interval", "0"), "--interval 0"),
        (("--textfile", "a.prom", "--interval", "nan"), "--interval nan"),
        (("--textfile", "a.prom", "--linger", "-1"), "--linger -1"),
    ],
)
def test_bad_options_are_refused_in_a_line(folder, monkeypatch, options, why, capsys):
    monkeypatch.chdir(folder.parent)
    assert main(["metrics", str(folder), *options]) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_port_in_use_is_refused(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert main(["metrics", str(folder), "--listen", f"127.0.0.1:{server.getsockname()[1]}"]) == 2
    said = capsys.readouterr().err
    assert "Address already in use" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("given", "why"), [("missing", "expected the folder"), ("empty", "no readable black box")])
def test_a_folder_without_a_job_is_refused(tmp_path, given, why, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["metrics", str(tmp_path / given), "--textfile", str(tmp_path / "a.prom"), "--once"]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "a.prom").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into every folder")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path, folder, capsys):
    (tmp_path / "closed").mkdir(mode=0o500)
    assert main(["metrics", str(folder), "--textfile", str(tmp_path / "closed" / "a.prom")]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_for_a_while_is_said_once(tmp_path, folder, monkeypatch, capsys):
    calls = []

    def write(path, text):
        calls.append(text)
        if 1 < len(calls) < 4:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("simcoll.cli.metrics.write_whole", write)
    options = ["--textfile", str(tmp_path / "a.prom"), "--interval", "0.05", "--linger", "1"]
    assert main(["metrics", str(folder), *options]) == 0
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert len(calls) >= 4


@pytest.mark.parametrize(
    ("library", "modules", "extra"),
    [
        ("prometheus_client", ["metrics"], "metrics"),
        ("opentelemetry", ["span_sender", "spans"], "otel"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(folder, monkeypatch, library, modules, extra, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    for name in modules:
        monkeypatch.delitem(sys.modules, f"simcoll.live.{name}", raising=False)
    assert main(["metrics", str(folder), "--listen", "127.0.0.1:0", "--otel"]) == 2
    said = capsys.readouterr().err
    assert f"pip install 'simcoll[{extra}]'" in said
    assert said.count("\n") == 1
