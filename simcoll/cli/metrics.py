"""``simcoll metrics``: a running job for Prometheus, by HTTP or as a file for a node exporter."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.cli.arguments import add_output_arguments, request_of, stated_seconds
from simcoll.cli.output import Output, warn
from simcoll.cli.status import exit_code, seen_twice
from simcoll.core.io import stated_path, write_whole
from simcoll.errors import BAD_INPUT, OK, UsageError
from simcoll.live.folder import job_folder
from simcoll.live.now import Motion
from simcoll.live.watch import JobWatch

if TYPE_CHECKING:
    from simcoll.live.metrics import JobMetrics
    from simcoll.live.span_sender import SpanSender

SCHEMA = "simcoll.metrics/1"

_BUSY = 0.2
"""Looks take at most this share of the time, whatever the interval."""

_TICK_SECONDS = 0.01
"""So long after a job is due to stand it is looked at."""

_VERDICT_SECONDS = 0.2
"""A look that is being judged is followed by another one so soon, which has the findings."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``metrics`` to its parser."""
    parser.epilog = "Exit codes, once the job has ended, or with --once: those of simcoll status."
    add_output_arguments(parser)
    parser.add_argument("folder", metavar="FOLDER", type=stated_path, help="where the job records")
    parser.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        help="answer Prometheus there, such as 127.0.0.1:9464; 0.0.0.0 is every address, port 0 any that is free",
    )
    parser.add_argument(
        "--textfile", metavar="PATH", type=stated_path, help="write the metrics there, for a node exporter's collector"
    )
    parser.add_argument("--interval", metavar="SECONDS", type=float, default=1.0, help="between two looks (1)")
    parser.add_argument(
        "--once", action="store_true", help="one look, on stdout or with --textfile, and the exit code of status"
    )
    parser.add_argument(
        "--linger",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="go on for this time after the job has ended, for the last scrape or a restart (60)",
    )
    parser.add_argument(
        "--otel",
        action="store_true",
        help="send OpenTelemetry spans of steps, and of collectives that stand (OTEL_EXPORTER_OTLP_ENDPOINT)",
    )
    parser.add_argument("--stall", metavar="SECONDS", type=stated_seconds, help="as for simcoll status")


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll metrics``; the exit code of the contract."""
    return metrics(request_of(MetricsRequest, options))


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    """The options of ``simcoll metrics``; ``interval``, ``linger`` and ``stall`` are in seconds."""

    folder: Path
    listen: str | None
    textfile: Path | None
    interval: float
    once: bool
    linger: float
    otel: bool
    stall: float | None
    json: bool
    plain: bool


def metrics(request: MetricsRequest) -> int:
    """Serve or write the metrics of a job until it has ended; the exit code is that of the last look."""
    output = Output(json=request.json, plain=request.plain)
    try:
        address = _checked(request)
        folder = job_folder(request.folder)
        job_metrics = _job_metrics()
        if request.once:
            watch = JobWatch(folder, request.stall)
            job = seen_twice(watch)
            job_metrics.take(job, watch.tails)
            _write(request.textfile, job_metrics)
            _show(output, request.textfile, job_metrics)
            return exit_code(job)
        sender = _sender() if request.otel else None
        _write(request.textfile, job_metrics)
        where = None if address is None else _serve(*address, job_metrics)
    except UsageError as error:
        return output.refuse(BAD_INPUT, str(error))
    _say(output, where, request.textfile)
    try:
        return _follow(folder, request, job_metrics, sender)
    finally:
        if sender is not None:
            sender.close()


def _checked(request: MetricsRequest) -> tuple[str, int] | None:
    """The address at which to listen, None for none; raises UsageError for options that make no sense together."""
    if request.listen is None and request.textfile is None and not request.once:
        raise UsageError("say where the metrics go: --listen ADDRESS:PORT, --textfile PATH, or both; or --once")
    if request.once and request.listen is not None:
        raise UsageError("--once does not go with --listen")
    if request.once and request.otel:
        raise UsageError("--otel follows a job; leave --once out")
    if not 0 < request.interval < math.inf:
        raise UsageError(f"--interval {request.interval:g}: expected seconds, such as 0.5")
    if not request.linger >= 0:
        raise UsageError(f"--linger {request.linger:g}: expected seconds, 0 or more")
    return None if request.listen is None else parse_address(request.listen)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9464`` or ``[::1]:9464``; raises UsageError."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    named = host[1:-1] if bracketed else host
    sound = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16
    if not colon or not named or not sound or (":" in named and not bracketed):
        raise UsageError(
            f"--listen {text}: expected ADDRESS:PORT, such as 127.0.0.1:9464, [::1]:9464, or 0.0.0.0:9464 for every "
            "address of this machine"
        )
    return named, int(port)


def _job_metrics() -> JobMetrics:
    with _needing("prometheus_client", "simcoll metrics needs prometheus_client: pip install 'simcoll[metrics]'"):
        from simcoll.live.metrics import JobMetrics
    return JobMetrics()


def _sender() -> SpanSender:
    with _needing("opentelemetry", "--otel needs OpenTelemetry's SDK: pip install 'simcoll[otel]'"):
        from simcoll.live.span_sender import SpanSender
    return SpanSender()


@contextlib.contextmanager
def _needing(library: str, advice: str) -> Iterator[None]:
    """Raise UsageError with the advice where an import lacks this library."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise UsageError(advice) from None


def _serve(host: str, port: int, job_metrics: JobMetrics) -> str:
    """Answer scrapes on threads of this process; returns the address. Raises UsageError."""
    from simcoll.live.scrape_server import serve

    shown = f"[{host}]" if ":" in host else host
    try:
        found = serve(host, port, job_metrics.registry())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--listen {shown}:{port}: {reason}; name an address of this machine and a free port"
        ) from error
    return f"http://{shown}:{found}/metrics"


def _write(textfile: Path | None, job_metrics: JobMetrics) -> None:
    """Put the metrics in the file's place, whole; raises UsageError."""
    if textfile is None:
        return
    try:
        write_whole(textfile, job_metrics.text())
    except OSError as error:
        raise UsageError(f"--textfile {textfile}: cannot be written: {error.strerror}") from error


def _show(output: Output, textfile: Path | None, job_metrics: JobMetrics) -> None:
    """Put the metrics of one look on stdout: as a document, or as text where no file has it."""
    if output.json:
        written = None if textfile is None else str(textfile)
        document = {"schema": SCHEMA, "listen": None, "textfile": written, "metrics": job_metrics.document()}
        output.hand_over(json.dumps(document))
    elif textfile is None:
        output.hand_over(job_metrics.text().removesuffix("\n"))


def _say(output: Output, where: str | None, textfile: Path | None) -> None:
    if output.json:
        written = None if textfile is None else str(textfile)
        output.hand_over(json.dumps({"schema": SCHEMA, "listen": where, "textfile": written}))
    elif where is not None:
        output.hand_over(f"metrics at {where}")


def _follow(folder: Path, request: MetricsRequest, job_metrics: JobMetrics, sender: SpanSender | None) -> int:
    """Look again and again until the job has been over for long enough.

    A file that cannot be written for a while, as on a full disk, is said once and tried again.
    """
    over_since, trouble = None, ""
    with ThreadPoolExecutor(1, "simcoll-judge") as executor:
        watch = JobWatch(folder, request.stall, executor)
        while True:
            begun = time.monotonic()
            job = watch.look()
            if job is not None:
                if sender is not None:
                    sender.take(job)
                job_metrics.take(job, watch.tails)
                trouble = _written(request.textfile, job_metrics, trouble)
            now = time.monotonic()
            over = job is not None and job.motion is Motion.ENDED
            over_since = (over_since or now) if over else None
            if over_since is not None and now - over_since >= request.linger:
                break
            until_next = min(
                request.interval,
                math.inf if watch.due is None else watch.due + _TICK_SECONDS,
                _VERDICT_SECONDS if watch.judging else math.inf,
            )
            time.sleep(max(until_next - (now - begun), (now - begun) * (1 / _BUSY - 1)))
    # What was judged beside the looks may be of an earlier one.
    watch = JobWatch(folder, request.stall)
    job = watch.look()
    if job is None:
        return OK
    job_metrics.take(job, watch.tails)
    _written(request.textfile, job_metrics, trouble)
    return exit_code(job)


def _written(textfile: Path | None, job_metrics: JobMetrics, trouble: str) -> str:
    """Write the file; returns why that was not possible, and says so unless that is known (``trouble``)."""
    try:
        _write(textfile, job_metrics)
    except UsageError as error:
        if str(error) != trouble:
            warn(str(error))
        return str(error)
    return ""
