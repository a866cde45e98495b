"""CUDA graphs: notices captures and replays, through ``torch.cuda.CUDAGraph``, which everything in torch goes through.

While a graph captures a call, no host work goes on that a capture forbids: nothing is proved, queued, asked or waited
for. The call is written down as captured. Whenever the graph is replayed, its captured calls are written down and
compared as calls that are made then (`simcoll.cuda.graph_replay`). A graph that captured no call costs one look at its
attributes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.cuda.graphs import CUDAGraph

from simcoll.core.patches import Patches
from simcoll.core.record import source_document
from simcoll.cuda.graph_replay import CapturedCall, GroupOfGraph, GroupReplay
from simcoll.cuda.watcher import looks_paused
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.dynamo import leave_uncompiled
from simcoll.recorder.session import pipelines
from simcoll.recorder.source import current_source

_CALLS = "_simcoll_calls"
"""The attribute of a graph that holds what it captured: gone with the graph."""

_numbers = itertools.count(1)
_joining = threading.Lock()
"""Held while a replay joins the queues of its groups, so that two replays join all of them in the same order."""


class GraphCalls:
    """The calls that one graph captures, in order, and how often they were replayed."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.maker = threading.get_ident()
        self.calls: list[CapturedCall] = []
        self.replays = 0
        self._paused = contextlib.ExitStack()

    def open(self) -> None:
        """The capture is about to begin."""
        self._paused.enter_context(looks_paused())
        open_captures.append(self)

    def close(self) -> None:
        """The capture has ended, or never began."""
        if self in open_captures:
            open_captures.remove(self)
        self._paused.close()

    def by_group(self) -> dict[GroupOfGraph, list[CapturedCall]]:
        """The calls of each group that is still there."""
        found: dict[GroupOfGraph, list[CapturedCall]] = {}
        for call in self.calls:
            if (group := call.group()) is not None:
                found.setdefault(group, []).append(call)
        return found

    def note(self, kind: str, group: GroupOfGraph, **data: object) -> None:
        """Write down that the graph was captured or replayed."""
        source = source_document(current_source())
        group.log.recorder.event(kind, graph=self.number, calls=len(self.calls), source=source, **data)


open_captures: list[GraphCalls] = []
"""The graphs being captured in this process; mostly empty, which is all that a call checks."""


def capture_of(arguments: Arguments, devices: Sequence[torch.device]) -> GraphCalls | None:
    """Returns the capture that the call belongs to; None if it is not captured. ``devices`` are its group's."""
    used = [tensor.device for tensors in arguments.tensors.values() for tensor in tensors[:1]]
    # A barrier has no tensors; it may be the GPU's.
    device = next((device for device in used or devices if device.type == "cuda"), None)
    if device is None or not _is_capturing(device):
        return None
    this = threading.get_ident()
    # The backward pass makes its calls in threads of its own.
    return next((one for one in reversed(open_captures) if one.maker == this), open_captures[-1])


def _is_capturing(device: torch.device) -> bool:
    with torch.cuda.device(device) if device.index is not None else contextlib.nullcontext():
        return torch.cuda.is_current_stream_capturing()


_patches = Patches()


def watch_graphs(kind: type = CUDAGraph) -> None:
    """Notice the captures and replays of graphs of this class from now on; once is enough."""
    if _patches:
        return
    wrappers = {"capture_begin": _beginning, "capture_end": _ending, "replay": _replaying, "reset": _resetting}
    for name, wrap in wrappers.items():
        _patches.wrap(kind, name, wrap)


def ignore_graphs() -> None:
    """Leave graphs as torch made them; those that have captured calls replay them unseen."""
    _patches.restore()


def _beginning(capture_begin: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(capture_begin)
    def begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        for pipeline in list(pipelines.here):
            # A thread that launches calls beside a capture may break it.
            pipeline.await_launches()
        calls = GraphCalls()
        vars(graph).pop(_CALLS, None)
        calls.open()
        try:
            result = capture_begin(graph, *args, **kwargs)
        except BaseException:
            calls.close()
            raise
        setattr(graph, _CALLS, calls)
        return result

    leave_uncompiled(begin)
    return begin


def _ending(capture_end: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(capture_end)
    def end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        calls: GraphCalls | None = vars(graph).pop(_CALLS, None)
        try:
            result = capture_end(graph, *args, **kwargs)
        finally:
            if calls is not None:
                calls.close()
        if calls is not None and calls.calls:
            setattr(graph, _CALLS, calls)
            for group in list(calls.by_group())[:1]:
                calls.note("captured", group)
        return result

    leave_uncompiled(end)
    return end


def _resetting(reset: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(reset)
    def forget(graph: Any, *args: Any, **kwargs: Any) -> Any:
        calls: GraphCalls | None = vars(graph).pop(_CALLS, None)
        if calls is not None:
            calls.close()
        return reset(graph, *args, **kwargs)

    leave_uncompiled(forget)
    return forget


def _replaying(replay: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(replay)
    def run(graph: Any, *args: Any, **kwargs: Any) -> Any:
        calls: GraphCalls | None = vars(graph).get(_CALLS)
        launch = functools.partial(replay, graph, *args, **kwargs)
        return launch() if calls is None else _replay(calls, launch)

    leave_uncompiled(run)
    return run


def _replay(calls: GraphCalls, launch: Callable[[], Any]) -> Any:
    """Launch a graph with calls in it, which are proved before and compared after, depending on the mode."""
    if open_captures and torch.cuda.is_current_stream_capturing():
        # A graph within the one that is captured.
        open_captures[-1].calls += calls.calls
        return launch()
    groups = calls.by_group()
    replays = [found for group, its in groups.items() if (found := group.replay(its)) is not None]
    if not replays:
        return launch()
    calls.replays += 1
    if calls.replays & (calls.replays - 1) == 0:
        calls.note("replayed", next(iter(groups)), count=calls.replays)
    try:
        _prove(replays)
        for one in replays:
            one.launching()
        result = launch()
    except BaseException:
        for one in replays:
            one.refused()
        raise
    finally:
        for one in replays:
            one.leave()
    for one in replays:
        one.launched()
    return result


def _prove(replays: Sequence[GroupReplay]) -> None:
    """Prove the calls of all groups; each group for itself, as other ranks may come to them in another order."""
    with _joining:
        for one in replays:
            one.join()
    proving = [one for one in replays if one.proves]
    if len(proving) == 1:
        proving[0].prove()
    elif proving:
        with ThreadPoolExecutor(len(proving), "simcoll-graph") as threads:
            for proved in [threads.submit(one.prove) for one in proving]:
                proved.result()
