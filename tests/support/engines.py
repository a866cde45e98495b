"""Real clusters of two workers on this machine, by the engines that ``--executor`` can name."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def dask_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """Dask's scheduler and workers, each with a nanny that starts it again when it has died."""
    address = f"tcp://127.0.0.1:{free_port()}"
    host, _, port = address.removeprefix("tcp://").partition(":")
    commands = [
        ["distributed.cli.dask_scheduler", "--host", host, "--port", port, "--no-dashboard"],
        ["distributed.cli.dask_worker", address, f"--nworkers={workers}", "--nthreads=1", "--no-dashboard"],
    ]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(folder / "dask.log", "wb"))
        for command in commands:
            # Workers import what tests send them.
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(folder)},
            )
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)
        yield address


_STORE = "--object-store-memory=100000000"


@contextlib.contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """A head of Ray with two cores, which starts the processes that run tasks, and its server for clients."""
    port = free_port()
    ray = str(shutil.which("ray", path=os.path.dirname(sys.executable)))
    options = ["--port=0", f"--ray-client-server-port={port}", "--num-cpus=2", "--include-dashboard=false"]
    options += [
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--object-store-memory=100000000",
        "--disable-usage-stats",
    ]
    # The paths of its sockets are bounded, so that the test's folder is too deep.
    place = Path(tempfile.gettempdir()) / f"simcoll-ray-{os.getpid()}"
    head = subprocess.Popen(
        [ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1", *options, f"--temp-dir={place}", _STORE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert head.stdout is not None
    try:
        said = ""
        while "--block" not in said:
            said = head.stdout.readline()
            assert said, "Ray did not start"
        yield f"ray://127.0.0.1:{port}"
    finally:
        # `ray stop` would end all that Ray runs on this machine, also for others.
        head.terminate()
        head.communicate()
        shutil.rmtree(place, ignore_errors=True)


ENGINES = {"dask": ("distributed", dask_cluster), "ray": ("ray", ray_cluster)}


@contextlib.contextmanager
def cluster(engine: str, folder: Path) -> Iterator[str]:
    """The address of a cluster; the test is skipped where the engine is not installed."""
    module, start = ENGINES[engine]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{engine} is not installed here; `make test-executors` has it")
    with start(folder) as address:
        yield address


def own_process(_: object = None) -> int:
    """The process that runs this."""
    return os.getpid()


def end_process(_: object = None) -> None:
    """End the process that runs this."""
    os.kill(os.getpid(), signal.SIGKILL)


def end_process_once(mark: str) -> str:
    """End the process that runs this, unless one has left the mark before."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return mark
    end_process()
    raise AssertionError
