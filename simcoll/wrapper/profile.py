"""Keeps queued calls in the user's profile.

The profiler watches threads, and a queued call is launched from another thread than the one that made it. So the
events that the dispatcher and the backend would have recorded are recorded for it: under the same names, with the same
input shapes, the dispatcher's for the moment of the call, the backend's from the call to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch._C._autograd import _record_function_with_args_enter, _record_function_with_args_exit

from simcoll.backends.base import Backend
from simcoll.recorder.arguments import Arguments

_DISPATCHED_AS = {
    "barrier": "barrier",
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "all_to_all_single": "alltoall_base_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
}
"""The dispatcher's names of c10d methods; the others' are the method's with an underscore after it."""


def profiled(arguments: Arguments, backend: Backend | None) -> Callable[[], None] | None:
    """Begin the events of a call in this thread's profile; returns what ends them, or None where nobody watches."""
    if not torch.autograd._profiler_enabled():
        return None
    tensors = [tensor for role, group in arguments.tensors.items() if role != "outputs" for tensor in group]
    method = arguments.method.name
    dispatched = _record_function_with_args_enter(f"c10d::{_DISPATCHED_AS.get(method, method + '_')}", *tensors)
    _record_function_with_args_exit(dispatched)
    if backend is None:
        return None
    of_row = backend.profiled_as.get(arguments.spec.name, arguments.spec.profiling[0])
    name = f"{backend.name}:{backend.profiled_as.get(method, of_row)}"
    return partial(_record_function_with_args_exit, _record_function_with_args_enter(name, *tensors))
