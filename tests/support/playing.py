"""Plays random programs: on simulated ranks, and on whatever torch.distributed runs on."""

from __future__ import annotations

import json
import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from simcoll.backends.simulated import simulate
from simcoll.spec.semantics import Array
from simcoll.verifier.findings.finding import Finding, Report
from tests.support.forked import ForkServer
from tests.support.random_programs import Program

PLAYER = Path(__file__).parents[1] / "programs" / "player.py"
FILE = "program.py"
"""What findings call the program's file; it is in memory alone."""

TOLERANCE = {"float16": 2e-3, "float32": 1e-6, "complex64": 1e-6}


def values(shape: Sequence[int], dtype: str, seed: int | None) -> Array:
    """What is in a buffer: small numbers, so that every dtype holds sums and products exactly."""
    if seed is None:
        return np.zeros(tuple(shape), dtype)
    numbers = (np.arange(math.prod(shape)) * 3 + seed) % (2 if dtype == "bool" else 4)
    whole = numbers + 1j * ((numbers + seed) % 3) if dtype.startswith("complex") else numbers
    return whole.astype(dtype).reshape(tuple(shape))


@dataclass
class Kept:
    """What a rank's program holds at its end, by name."""

    things: dict[str, Any] = field(default_factory=dict)

    def names(self, make: Callable[[Array], Any]) -> dict[str, Any]:
        """The names that the text of a program uses; ``make`` makes a buffer of an array."""

        def array(name: str, shape: Sequence[int], dtype: str, seed: int | None) -> Any:
            made = make(values(shape, dtype, seed))
            if name:
                self.things[name] = made
            return made

        return {"array": array, "keep": self.things.__setitem__, "caught": caught}


def caught(call: Callable[[], object]) -> None:
    """Make a call, whatever it raises."""
    with suppress(Exception):
        call()


def run(source: str, comm: Any, names: dict[str, Any]) -> None:
    """Run one rank's program on a communicator."""
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    exec(compile(source, FILE, "exec"), names)
    names["program"](comm)


@dataclass(frozen=True)
class Played:
    """What became of a program: the report, what each rank held at its end that ended well, which did not.

    Of simulated ranks also the schedule, and all that they have written down.
    """

    report: Report
    results: Mapping[int, Mapping[str, Any]]
    failed: frozenset[int]
    output: str = ""
    schedule: str = ""
    written: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.report.findings


Players: TypeAlias = dict[str, Callable[[Program], Played]]
"""What plays programs on other ranks than simulated ones, by name."""


def body_of(program: Program) -> Callable[[Any], dict[str, Any]]:
    """The program for :func:`simcoll.simulate`; what a rank holds at its end."""

    def body(comm: Any) -> dict[str, Any]:
        kept = Kept()
        run(program.source(comm.rank), comm, kept.names(lambda array: array))
        return kept.things

    return body


def on_simulated_ranks(program: Program, seed: int = 0, schedule: str | None = None) -> Played:
    """Play it on simulated ranks."""
    outcome = simulate(body_of(program), len(program.ranks), seed=seed, schedule=schedule)
    text = "\n".join(f"rank {rank}: {error!r}" for rank, error in outcome.exceptions.items())
    written = repr([(trace.events, trace.signatures, trace.sources, trace.slots.tobytes()) for trace in outcome.traces])
    return Played(outcome.report, outcome.results, frozenset(outcome.exceptions), text, outcome.schedule, written)


def on_threads(program: Program, seed: int = 0) -> Played:
    """Play it on torch's ranks as threads of this process."""
    import torch
    import torch.distributed as dist

    from simcoll.backends.threaded.run import run_threaded

    comm = torch_comm()

    def body(rank: int) -> dict[str, Any]:
        kept = Kept()
        dist.init_process_group("gloo")
        run(program.source(rank), comm(), kept.names(torch.from_numpy))
        tensors = torch.Tensor
        return {name: one.numpy() if isinstance(one, tensors) else one for name, one in kept.things.items()}

    outcome = run_threaded(len(program.ranks), body, seed=seed, init=False)
    text = "\n".join(f"rank {rank}: {error!r}" for rank, error in outcome.exceptions.items())
    return Played(outcome.report, outcome.results, frozenset(outcome.exceptions), text, outcome.schedule)


def real_players(server: ForkServer, folder: Path) -> Players:
    """Real Gloo ranks, where each program has a folder of its own, and threads."""
    numbers = count()
    return {
        "threaded": on_threads,
        "gloo": lambda program: on_real_ranks(program, server, folder / str(next(numbers))),
    }


def on_real_ranks(program: Program, server: ForkServer, folder: Path, stall: float | None = 1.0) -> Played:
    """Play it on real Gloo ranks in detail mode."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "program.json"
    file.write_text(json.dumps(program.document()))
    result = server.run(PLAYER, folder, ranks=len(program.ranks), stall=stall, arguments=[str(file)])
    results = {}
    for rank in range(len(program.ranks)):
        if (kept := folder / f"kept{rank}.npz").exists():
            with np.load(kept) as loaded:
                results[rank] = {name: _plain(loaded[name]) for name in loaded.files}
    failed = frozenset(rank for rank, code in enumerate(result.exit_codes) if code)
    return Played(result.report, results, failed, result.output)


def _plain(value: Array) -> Any:
    return json.loads(value.item()) if value.dtype.kind == "U" else value


def torch_comm() -> Any:
    """The class of :mod:`tests.support.torch_comm`, under a file name that simcoll passes over as generated code."""
    names: dict[str, Any] = {"__name__": "tests.support.torch_comm"}
    source = Path(__file__).with_name("torch_comm.py").read_text()
    exec(compile(source, "<torch_comm>", "exec"), names)
    return names["TorchComm"]


def same(mine: Any, theirs: Any) -> bool:
    """Whether two ranks hold the same."""
    if not isinstance(mine, np.ndarray):
        return bool(mine == theirs)
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    tolerance = TOLERANCE.get(mine.dtype.name, 0.0 if mine.dtype.kind in "iub" else 1e-12)
    return bool(np.allclose(mine, theirs, rtol=tolerance, atol=0, equal_nan=True))


def differing_results(program: Program, mine: Played, theirs: Played) -> list[str]:
    """The buffers in which ranks that ended well on both hold other things."""
    return [
        f"rank {rank}: {name}: {value!r} and {theirs.results[rank][name]!r}"
        for rank in sorted(mine.results.keys() & theirs.results.keys())
        for name, value in mine.results[rank].items()
        if name not in program.unsure and not same(value, theirs.results[rank][name])
    ]
