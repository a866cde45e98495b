"""A dry run shared by several processes: each takes ranks while it has free cores, and the first gets their records."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simcoll.core.io import make_sparse
from simcoll.dryrun.driver import DryRunPlan, run_locally
from simcoll.dryrun.process_pool import ProcessEnd
from simcoll.dryrun.rank.main import DryRun, log_name
from simcoll.dryrun.rendezvous import Rendezvous
from simcoll.recorder.recorder import box_name

_AHEAD = 16
"""At most so many ranks' records wait in the store for the first process."""

_LOG_BYTES = 1 << 20
_CONCLUDE_SECONDS = 10.0

Progress = Callable[[int], None]


class SharedDryRun:
    """One process's side of a dry run that several processes share."""

    def __init__(self, meeting: Rendezvous, dry_run: DryRun, plan: DryRunPlan) -> None:
        self._meeting = meeting
        self._dry_run = dry_run
        self._plan = plan
        self._round = 0

    def run(self, chosen: Sequence[int], done: Progress) -> dict[int, ProcessEnd]:
        """Run these ranks here and in the other processes; their records end up in this process's folder."""
        number = self._next_round()
        self._meeting.put(f"{number}/ranks", json.dumps(list(chosen)).encode())
        ends = self._run_share(number, chosen, done)
        for other in range(1, self._meeting.job.count):
            ends |= self._collect(number, other, done)
        return ends

    def serve(self) -> int:
        """Run a share of every round of ranks until the first process concludes; returns its exit code."""
        while True:
            number = self._next_round()
            self._meeting.wait([f"{number}/ranks"], of=0)
            message = json.loads(self._meeting.take(f"{number}/ranks", of=0, keep=True))
            if isinstance(message, int):
                self._meeting.put_plain(f"left/{self._meeting.job.number}", "")
                return message
            ends = self._run_share(number, message, lambda count: None)
            self._hand_over(number, ends)

    def conclude(self, code: int) -> None:
        """Send the verdict's exit code to the others, and wait until they have it."""
        self._meeting.put(f"{self._next_round()}/ranks", json.dumps(code).encode())
        limit = time.monotonic() + _CONCLUDE_SECONDS
        others = [f"left/{other}" for other in range(1, self._meeting.job.count)]
        while time.monotonic() < limit and not all(map(self._meeting.has, others)):
            time.sleep(0.02)

    def _next_round(self) -> int:
        self._round += 1
        return self._round

    def _run_share(self, number: int, chosen: Sequence[int], done: Progress) -> dict[int, ProcessEnd]:
        counted = 0

        def ended(count: int) -> None:
            nonlocal counted
            done(self._meeting.add(f"{number}/done", count - counted))
            counted = count

        ranks = self._take_ranks(number, chosen)
        return run_locally(self._dry_run, self._plan, ranks, ended)

    def _take_ranks(self, number: int, chosen: Sequence[int]) -> Iterator[int]:
        """The ranks that this process takes: the next one that no other has taken."""
        while (place := self._meeting.add(f"{number}/dealt") - 1) < len(chosen):
            self._meeting.check()
            yield chosen[place]

    def _hand_over(self, number: int, ends: dict[int, ProcessEnd]) -> None:
        """Send how the ranks ended, their records and their logs, not too much at a time."""
        own = f"{number}/{self._meeting.job.number}"
        document = [[rank, end.exit_code, end.time_ns, end.timed_out, end.out_of_memory] for rank, end in ends.items()]
        self._meeting.put(f"{own}/ends", json.dumps(document).encode())
        ranks = list(ends)
        for place, rank in enumerate(ranks):
            while place >= _AHEAD and self._meeting.has(f"{own}/{ranks[place - _AHEAD]}/log"):
                self._meeting.check(0)
                time.sleep(0.01)
            for kind, path in self._files(rank):
                self._meeting.put(f"{own}/{rank}/{kind}", zlib.compress(_file_end(path), 1))
                path.unlink(missing_ok=True)

    def _collect(self, number: int, other: int, done: Progress) -> dict[int, ProcessEnd]:
        own = f"{number}/{other}"

        def waiting() -> None:
            done(self._meeting.add(f"{number}/done", 0))

        self._meeting.wait([f"{own}/ends"], while_waiting=waiting)
        document = json.loads(self._meeting.take(f"{own}/ends"))
        for rank, *_ in document:
            for kind, path in self._files(rank):
                # Empty where the rank made no group: like an absent file.
                if data := zlib.decompress(self._meeting.take(f"{own}/{rank}/{kind}")):
                    path.write_bytes(data)
                    if kind == "box":
                        make_sparse(path)
        return {rank: ProcessEnd(*end) for rank, *end in document}

    def _files(self, rank: int) -> tuple[tuple[str, Path], tuple[str, Path]]:
        folder = self._dry_run.folder
        return ("box", folder / box_name(rank)), ("log", folder / log_name(rank))


def _file_end(path: Path) -> bytes:
    """The content of a record, or the end of a log; empty where there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    return data if path.suffix != ".log" else data[-_LOG_BYTES:]
