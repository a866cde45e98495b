"""Work that spreads: over processes of this machine, or the workers of a cluster that Dask, Ray or Slurm runs.

The seam is ``concurrent.futures.Executor``, which the standard library and Dask have; Ray's is made of its futures, and
workers under Slurm are Dask's (dask-jobqueue). What an engine does is left to it: it starts workers, deals out tasks,
carries arguments and results, and repeats a task whose worker has died. Engines are imported when one is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from simcoll.core.process import cores
from simcoll.core.versions import version_of
from simcoll.errors import CANNOT_START, ExecutorError, SimcollError

Item = TypeVar("Item")
Result = TypeVar("Result")

FORMS = "tcp://HOST:PORT (Dask), ray://HOST:PORT or ray, slurm:partition=P,cores=N,memory=8GB,jobs=N, or local"
"""The forms of an address, for messages."""

_REPEATED = 3
"""The times that Ray repeats a task whose process has died, as Dask does by default."""

_LOOK_SECONDS = 5.0
_CONNECT_SECONDS = 30.0
_LISTEN_SECONDS = 10.0
"""Ray says that it has started a moment before its server for clients listens."""

_AGAIN_SECONDS = 0.1
_FIRST_SECONDS = 60.0
_QUEUE_SECONDS = 600.0
"""Jobs of Slurm may wait in its queue for so long before the first one begins."""

_DESERTED_SECONDS = 60.0
"""Without any worker for so long, the work counts as lost."""


@dataclass(frozen=True, slots=True)
class Spread:
    """An executor, the address that was given for it, and the number of tasks that it runs at a time just now, which is
    0 while no worker is there.
    """

    executor: Executor
    address: str
    slots: Callable[[], int]

    def at_once(self) -> int:
        """The number of tasks at a time for which work is divided: at least one, as workers may come later."""
        return max(1, self.slots())

    def results(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Each item with what ``function`` returns for it, as they come; few more are taken than run at a time.

        Raises what the function raises, if that is a SimcollError, and ExecutorError where a result cannot be had.
        """
        waiting, pending = iter(items), dict[Future[Result], Item]()
        try:
            while True:
                for item in islice(waiting, max(0, 2 * self.at_once() - len(pending))):
                    pending[self._submitted(function, item)] = item
                if not pending:
                    return
                for future in self._ended(pending):
                    yield pending.pop(future), self._result(future)
        finally:
            for future in pending:
                future.cancel()

    def _submitted(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        try:
            return self.executor.submit(function, item)
        except Exception as error:
            raise self._lost(_reason(error)) from error

    def _ended(self, pending: Iterable[Future[Result]]) -> list[Future[Result]]:
        """At least one task that has ended; raises ExecutorError where no worker has been there for long."""
        seen = time.monotonic()
        while not (done := wait(pending, _LOOK_SECONDS, FIRST_COMPLETED).done):
            if self.slots() > 0:
                seen = time.monotonic()
            elif time.monotonic() - seen > _DESERTED_SECONDS:
                raise self._lost(
                    f"no worker has been there for {_DESERTED_SECONDS:g} s; start some, and run this again"
                )
        return list(done)

    def _result(self, future: Future[Result]) -> Result:
        try:
            return future.result()
        except CancelledError:
            raise self._lost("the connection to it is lost, and with it what ran there") from None
        except Exception as error:
            # Ray's error has the task's as its cause, and a traceback as its text.
            cause = getattr(error, "cause", None) or error
            if isinstance(cause, SimcollError):
                raise cause from None
            raise self._lost(_reason(cause)) from error

    def _lost(self, reason: str) -> ExecutorError:
        return ExecutorError(f"--executor {self.address}: {reason}", CANNOT_START)

    def check_workers(self, seconds: float) -> None:
        """Raise ExecutorError where no worker answers in so many seconds, or one has another simcoll."""
        answer = self._submitted(version_of, "simcoll")
        if not wait([answer], seconds).done:
            answer.cancel()
            raise ExecutorError(f"--executor {self.address}: no worker has answered within {seconds:g} s")
        there, here = self._result(answer), version_of("simcoll")
        if there != here:
            raise ExecutorError(
                f"--executor {self.address}: its workers have simcoll {there}, and this is {here}; install the same"
            )


def _reason(error: Exception) -> str:
    """The first line of what went wrong."""
    if isinstance(error, ModuleNotFoundError) and error.name == "simcoll":
        return "its workers have no simcoll; install it in their environment"
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__


@contextlib.contextmanager
def opened(address: str) -> Iterator[Spread]:
    """The executor at an address (see FORMS); it is closed with the block.

    Raises ExecutorError for an address that cannot be used, and for an engine that is not installed.
    """
    scheme, _, rest = address.partition(":")
    known = {"tcp": _dask, "tls": _dask, "ray": _ray, "slurm": _slurm, "local": _local}
    if scheme not in known or (scheme in ("tcp", "tls") and not rest.startswith("//")):
        raise ExecutorError(f"--executor {address:.200}: expected {FORMS}")
    with known[scheme](address) as spread:
        yield spread


@contextlib.contextmanager
def _local(address: str) -> Iterator[Spread]:
    """As many processes of this machine as it has cores, or as ``local:N`` asks for.

    They are started afresh: a fork of a process with threads may hang.
    """
    asked = address.partition(":")[2]
    if asked and not (asked.isascii() and asked.isdecimal() and int(asked) > 0):
        raise ExecutorError(f"--executor {address:.200}: expected local, or local:N with a number of processes")
    count = int(asked) if asked else cores()
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    try:
        yield Spread(pool, address, lambda: count)
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Spread]:
    distributed = _engine("distributed", "Dask", "dask", address)
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ExecutorError(f"--executor {address}: no Dask scheduler can be reached: {_reason(error)}") from error
    with contextlib.closing(client):
        yield from _of_client(client, address, _FIRST_SECONDS)


def _of_client(client: Any, address: str, seconds: float) -> Iterator[Spread]:
    # What is lost is said once, in the command's own words.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)

    def slots() -> int:
        with contextlib.suppress(OSError, RuntimeError):
            return sum(client.nthreads().values())
        return 0

    spread = Spread(client.get_executor(pure=False), address, slots)
    spread.check_workers(seconds)
    yield spread


@contextlib.contextmanager
def _slurm(address: str) -> Iterator[Spread]:
    """Dask's workers as jobs of Slurm; they end with the block."""
    distributed = _engine("distributed", "Dask", "slurm", address)
    jobqueue = _engine("dask_jobqueue", "dask-jobqueue", "slurm", address)
    options = _options(address)
    jobs = options.pop("jobs", 2)
    try:
        cluster = jobqueue.SLURMCluster(**options, scheduler_options={"dashboard_address": ":0"})
    except (OSError, ValueError, TypeError) as error:
        raise ExecutorError(f"--executor {address}: {_reason(error)}") from error
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        _check_job(cluster.job_script(), address)
        cluster.scale(jobs=jobs)
        client = distributed.Client(cluster, timeout=_CONNECT_SECONDS, set_as_default=False)
        stack.callback(client.close)
        yield from _of_client(client, address, _QUEUE_SECONDS)


def _check_job(script: str, address: str) -> None:
    """Raise ExecutorError for a job that Slurm would refuse, which dask-jobqueue would only log."""
    try:
        tried = subprocess.run(
            ["sbatch", "--test-only"],  # noqa: S607  # the user's own Slurm, wherever it is
            input=script,
            capture_output=True,
            text=True,
            timeout=_CONNECT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ExecutorError(
            f"--executor {address}: there is no sbatch here; start it where jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise ExecutorError(f"--executor {address}: Slurm has not answered within {_CONNECT_SECONDS:g} s") from None
    if tried.returncode:
        reason = tried.stderr.strip().rpartition("\n")[2]
        raise ExecutorError(f"--executor {address}: {reason:.300}")


def _options(address: str) -> dict[str, Any]:
    """What stands behind ``slurm:``, as dask-jobqueue takes it: one process a core, no file of output for each job."""
    options: dict[str, Any] = {}
    for word in filter(None, address.partition(":")[2].split(",")):
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ExecutorError(f"--executor {address:.200}: {word!r}: expected NAME=VALUE; {FORMS}")
        options["queue" if name == "partition" else name] = int(value) if value.isdecimal() else value
    if "cores" in options:
        options.setdefault("processes", options["cores"])
    if "log_directory" not in options:
        options["job_extra_directives"] = ["--output=/dev/null"]
    return options


@contextlib.contextmanager
def _ray(address: str) -> Iterator[Spread]:
    ray = _engine("ray", "Ray", "ray", address)

    def slots() -> int:
        # Its errors are of many kinds where the cluster has gone.
        with contextlib.suppress(Exception):
            return int(ray.cluster_resources().get("CPU", 0))
        return 0

    # A client's address, or that of a node of the cluster, or none, for one that this machine belongs to.
    named = os.environ.get("RAY_ADDRESS", "auto") if address == "ray" else address
    try:
        _check_port(named)
        ray.init(
            address=named,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
        )
    except (OSError, ValueError, RuntimeError, ImportError, AssertionError) as error:
        raise ExecutorError(f"--executor {address}: no Ray cluster can be reached: {_reason(error)}") from error
    try:
        spread = Spread(_RayExecutor(ray), address, slots)
        spread.check_workers(_FIRST_SECONDS)
        yield spread
    finally:
        ray.shutdown()


def _check_port(address: str) -> None:
    """Raise OSError where nobody listens, nor begins to: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    last = time.monotonic() + _LISTEN_SECONDS
    while colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > last:
                raise
            time.sleep(_AGAIN_SECONDS)


class _RayExecutor(Executor):
    """Ray's tasks behind the interface of the standard library, which Ray itself does not have."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._call = ray.remote(max_retries=_REPEATED)(_call)

    def submit(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Start ``function(*args, **kwargs)`` as a task of one core."""
        reference = self._call.remote(function, args, kwargs)
        future: Future[Result] = reference.future()

        def ended(one: Future[Result]) -> None:
            if one.cancelled():
                self._ray.cancel(reference)

        future.add_done_callback(ended)
        return future


def _call(function: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
    return function(*args, **kwargs)


def _engine(module: str, name: str, extra: str, address: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != module:
            raise
        raise ExecutorError(
            f"--executor {address}: {name} is not installed here; pip install 'simcoll[{extra}]'"
        ) from None
