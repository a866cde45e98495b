"""``simcoll metrics``: a running job for Prometheus, over HTTP or as a file for node_exporter."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.cli.arguments import request_of
from simcoll.cli.output import Output
from simcoll.core.io import stated_path
from simcoll.errors import BAD_INPUT, CANNOT_START, OK, UsageError
from simcoll.live.folder import job_folder
from simcoll.live.watch import JobWatch

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_NEEDED = (
    "simcoll metrics needs prometheus_client, which is not installed; install it with: pip install 'simcoll[metrics]'"
)
_MOST_PORT = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``metrics`` to its parser."""
    parser.epilog = "It runs until it is ended by a signal; with --once it writes the file and ends."
    parser.add_argument("folder", metavar="FOLDER", type=stated_path, help="where the job records, or will record")
    parser.add_argument("--listen", metavar="ADDRESS:PORT", help="answer GET /metrics there, such as 0.0.0.0:9464")
    parser.add_argument("--textfile", metavar="PATH", type=stated_path, help="write them to this file (*.prom)")
    parser.add_argument("--interval", metavar="SECONDS", type=float, default=15.0, help="between two writes (15)")
    parser.add_argument("--once", action="store_true", help="write the file once, and end")
    parser.add_argument("--stall", metavar="SECONDS", type=float, help="as for simcoll status")


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll metrics``; the exit code of the contract."""
    return metrics(request_of(MetricsRequest, options))


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    """The options of ``simcoll metrics``; ``interval`` and ``stall`` are in seconds."""

    folder: Path
    listen: str | None
    textfile: Path | None
    interval: float
    once: bool
    stall: float | None


def metrics(request: MetricsRequest) -> int:
    """Serve or write the metrics of a job, one that has not begun yet included."""
    output = Output(json=False, plain=True)
    try:
        address = None if request.listen is None else parsed_address(request.listen)
        _check(request)
        folder = job_folder(request.folder)
    except UsageError as error:
        return output.refuse(BAD_INPUT, str(error))
    try:
        from prometheus_client import CollectorRegistry

        from simcoll.live.metrics import JobCollector
    except ImportError:
        return output.refuse(CANNOT_START, _NEEDED)
    with ThreadPoolExecutor(1, "simcoll-judge") as executor:
        registry = CollectorRegistry()
        registry.register(JobCollector(JobWatch(folder, request.stall, None if request.once else executor)))
        if address is not None and (reason := _serve(registry, *address)):
            return output.refuse(CANNOT_START, reason)
        return _write_again(registry, request, output)


def parsed_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``[IPv6]:PORT`` or ``:PORT``; raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5 or int(port) > _MOST_PORT:
        raise UsageError(f"--listen {text[:80]!r}: expected ADDRESS:PORT, such as 0.0.0.0:9464")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _check(request: MetricsRequest) -> None:
    if request.listen is None and request.textfile is None:
        raise UsageError("nowhere to put the metrics: give --listen ADDRESS:PORT, --textfile PATH, or both")
    if not request.interval > 0:
        raise UsageError(f"--interval {request.interval:g}: expected seconds, such as 15")
    if request.once and (request.textfile is None or request.listen is not None):
        raise UsageError("--once writes a file and ends: it goes with --textfile, not with --listen")


def _serve(registry: CollectorRegistry, host: str, port: int) -> str:
    """Answer requests on a thread; returns why that cannot be, or an empty text."""
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        return f"--listen {host}:{port}: {error.strerror or error}; give an address of this host and a free port"
    shown = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"simcoll: metrics at http://{shown}:{server.server_port}/metrics\n")
    sys.stderr.flush()
    return ""


def _write_again(registry: CollectorRegistry, request: MetricsRequest, output: Output) -> int:
    """Write the file again and again, if one is given, until a signal ends the command."""
    try:
        while True:
            begun = time.monotonic()
            if request.textfile is not None and (reason := _write(registry, request.textfile)):
                return output.refuse(CANNOT_START, reason)
            if request.once:
                return OK
            if request.textfile is None:
                threading.Event().wait()
            time.sleep(max(request.interval - (time.monotonic() - begun), 0.0))
    except KeyboardInterrupt:
        return OK


def _write(registry: CollectorRegistry, path: Path) -> str:
    """Replace the file as a whole; returns why that cannot be, or an empty text."""
    from prometheus_client import generate_latest

    data = generate_latest(registry)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        return f"--textfile {path}: {error.strerror or error}; give a file in a folder that can be written"
    return ""
