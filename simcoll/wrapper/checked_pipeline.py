"""Mode ``check``: calls are launched at once, and compared with the other ranks' in the background."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from threading import get_ident
from typing import Any

from torch.distributed import Work

from simcoll.cuda.graph_replay import CapturedCall, CheckedReplay, GroupReplay
from simcoll.cuda.watcher import DeviceTimes
from simcoll.proof.check_rounds import Made
from simcoll.proof.checker import Checker, MessageChecker
from simcoll.proof.p2p_channel import Posted
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import Entry, GroupLog
from simcoll.recorder.source import current_source
from simcoll.spec.table import Kind
from simcoll.wrapper.ddp import take_claim
from simcoll.wrapper.pipeline import Launch, Pipeline, recorded, watch
from simcoll.wrapper.work import CheckedWork


class BackgroundPipeline(Pipeline):
    """A pipeline with checkers in the background; ``post`` is the one of sends and receives, if there is one."""

    def __init__(
        self,
        log: GroupLog,
        times: DeviceTimes | None,
        post: MessageChecker | None,
        checkers: Sequence[Checker[Any]] = (),
    ) -> None:
        super().__init__(log, times)
        self._post = post
        self._checkers = [*checkers, *([] if post is None else [post])]
        for one in self._checkers:
            # A group that is merely dropped leaves no thread behind.
            weakref.finalize(self, one.abandon).atexit = False

    def _post_and_launch(self, entry: Entry, arguments: Arguments, launch: Launch, coalescing: bool) -> Work | None:
        """Launch a send or receive, whose ends are compared in the background."""
        backend = self._log.backend(arguments.device)
        channel = 0 if backend is None else backend.channel(entry.call.tag, batched=coalescing)
        posted = None if self._post is None else self._post.post(entry, channel)
        if posted is not None and not self._admits(posted, arguments, coalescing):
            return None
        flight = watch(entry, arguments, coalescing)
        taken = False
        try:
            inner = self._launch(entry, arguments, launch, flight)
            taken = True
        finally:
            if posted is not None:
                posted.launched = taken
            if not taken:
                self._refused()
        if inner is None:
            return recorded(None, entry, flight)
        failed = None if self._post is None else self._post.failed
        # A wait for a message that times out takes Gloo's connections with it: it must not look up now and then.
        return CheckedWork(inner, entry, flight, failed=failed)

    def _admits(self, posted: Posted, arguments: Arguments, coalescing: bool) -> bool:
        """Whether a message may be launched."""
        return True

    def _refused(self) -> None:
        """The backend has refused a message."""

    def raise_due(self) -> None:
        """Raise what was found in the background, if it was not raised yet."""
        if self._checkers:
            PENDING_ERRORS.raise_due()

    def finish(self) -> None:
        """Note that no call follows, without waiting."""
        if self._pid == os.getpid():
            for checker in self._checkers:
                checker.finish()

    def close(self, seconds: float) -> None:
        """Let the background compare what it can within ``seconds``; a forked child has no part in it."""
        super().close(seconds)
        if self._pid == os.getpid():
            self.finish()
            deadline = time.monotonic() + seconds
            for checker in self._checkers:
                checker.close(max(deadline - time.monotonic(), 0))


class CheckedPipeline(BackgroundPipeline):
    """Mode ``check``; ``checker`` compares the collectives of the group."""

    def __init__(
        self, log: GroupLog, times: DeviceTimes | None, checker: Checker[Made], post: MessageChecker | None
    ) -> None:
        super().__init__(log, times, post, [checker])
        self._checker = checker

    def run(self, arguments: Arguments, launch: Launch, *, coalescing: bool = False) -> Work | None:
        """Launch a call and hand it to the background; raises what the background has found before."""
        if not coalescing:
            PENDING_ERRORS.raise_due()
        entry = self._log.begin(arguments, current_source(), take_claim(self._log.group.name), started=True)
        if arguments.spec.kind is Kind.POINT_TO_POINT:
            return self._post_and_launch(entry, arguments, launch, coalescing)
        flight = watch(entry, arguments, coalescing)
        blocks = arguments.spec.names_absent
        if blocks:
            self._checker.add((entry, get_ident()))
        inner = self._launch(entry, arguments, launch, flight)
        # A call that the backend refuses takes no place among the others: a rank may try it alone.
        if not blocks:
            self._checker.add((entry, get_ident()))
        if inner is None:
            return recorded(None, entry, flight)
        return CheckedWork(inner, entry, flight, self._log.backend(arguments.device))

    def _replayed(self, calls: Sequence[CapturedCall]) -> GroupReplay:
        return CheckedReplay(self._log, calls, self._times, self._checker)
