"""Makes a call that another thread launches behave as if the thread that made it had launched it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from simcoll.backends.base import Backend
from simcoll.cuda.streams import CallerStream
from simcoll.recorder.arguments import Arguments

T = TypeVar("T")


def as_called(arguments: Arguments, backend: Backend | None) -> Callable[[Callable[[], T]], T]:
    """What calls a launch under this thread's gradient and inference mode, dispatch modes and streams, anywhere."""
    stream = CallerStream.of(arguments, backend)
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    modes = _get_current_dispatch_mode_stack()

    def launched(launch: Callable[[], T]) -> T:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode() if inference else nullcontext())
            stack.enter_context(torch.set_grad_enabled(gradients))
            stack.enter_context(stream)
            stack.enter_context(_dispatched_to(modes))
            work = launch()
            stream.launched(work)
            return work

    return launched


@contextmanager
def _dispatched_to(modes: Sequence[TorchDispatchMode]) -> Iterator[None]:
    """The dispatch modes in force, without entering them: many start over when they are entered."""
    for mode in modes:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in modes:
            _pop_mode()
