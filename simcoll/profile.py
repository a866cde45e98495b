"""Keeps queued calls in the user's profile.

The profiler watches threads, and a queued call is launched from another thread than the one that made it. So the
event that the backend would have recorded is recorded for it: under the same name, with the same input shapes, from
the call to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch._C._autograd import _record_function_with_args_enter, _record_function_with_args_exit

from simcoll.backends.base import Backend
from simcoll.capture import Arguments


def profiled(arguments: Arguments, backend: Backend | None) -> Callable[[], None] | None:
    """Begin the event of a call in this thread's profile; returns what ends it, or None where nobody watches."""
    if backend is None or not torch.autograd._profiler_enabled():
        return None
    row = arguments.spec.name
    name = f"{backend.name}:{backend.profiled_as.get(row, arguments.spec.profiling[0])}"
    tensors = [tensor for role, group in arguments.tensors.items() if role != "outputs" for tensor in group]
    return partial(_record_function_with_args_exit, _record_function_with_args_enter(name, *tensors))
