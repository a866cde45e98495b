"""What kernels would have computed on the pretended GPUs, computed by torch's own CPU kernels.

The double's device memory is this process's, so a CUDA tensor has a CPU alias. Each ATen operator that has a CUDA
kernel and a CPU one is given a CUDA kernel that checks its arguments on the meta device, and puts the CPU kernel over
the aliases on the current stream: the host goes on meanwhile, and graphs capture it. An operator whose result's shape
or value only the data tells waits for the stream, as it does on a GPU. torch loads this as a backend: see build.py.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

Operator = Any  # torch._ops.OpOverload
Closure = Callable[[], object]

# These are about memory, not arithmetic, and work as they are.
KEPT = ("empty", "set_", "resize", "_resize", "record_stream", "_local_scalar", "_pin_", "is_pinned", "_copy_from")
MATH_ATTENTION = 0  # torch.nn.attention.SDPBackend.MATH: made of operators that CPUs have as well
DEVICE_ASSERT = 710  # cudaErrorAssert

library = torch.library.Library("aten", "IMPL")
runtime = ctypes.CDLL(None)
runtime.cudaLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
tickets = itertools.count(1)
launched: dict[int, tuple[Closure, bool]] = {}


def install() -> None:
    """Gives every operator that can have one its kernel."""
    atexit.register(runtime.simcollDoubleEnd)
    torch.backends.cudnn.enabled = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            operator = operator_named(name)
            if operator is not None and replaceable(operator):
                library.impl(name.removeprefix("aten::"), kernel_of(operator), "CUDA")
        library.impl("copy_", copy, "CUDA")
        library.impl("_fused_sdp_choice", lambda *args, **kwargs: MATH_ATTENTION, "CUDA")


def operator_named(name: str) -> Operator | None:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
    return getattr(packet, overload or "default", None)


def replaceable(operator: Operator) -> bool:
    name = operator._schema.name.removeprefix("aten::")
    views = any(result.alias_info and not result.alias_info.is_write for result in operator._schema.returns)
    on_cpu = torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "CPU")
    return on_cpu and not views and not name.startswith(KEPT)


def kernel_of(operator: Operator) -> Callable[..., Any]:
    schema = operator._schema
    written = {one.name: one for one in schema.arguments if one.alias_info and one.alias_info.is_write}
    if written:
        return writing(operator, [argument.name for argument in schema.arguments], written)
    if any("Tensor" not in str(result.type) for result in schema.returns):
        return lambda *args, **kwargs: at_once(operator, args, kwargs)
    return lambda *args, **kwargs: producing(operator, args, kwargs)


def producing(operator: Operator, args: Any, kwargs: Any) -> Any:
    """An operator that returns new tensors."""
    try:
        shapes = operator(*as_meta(args), **as_meta(kwargs))
    except (RuntimeError, NotImplementedError):  # only the data tell, or the arguments are wrong
        return at_once(operator, args, kwargs)
    device = device_of(args, kwargs)
    results = tree_map(lambda meta: empty_like(meta, device), shapes)
    inputs, named, outputs = as_cpu(args), as_cpu(kwargs), as_cpu(results)
    launch(device, lambda: store(operator(*inputs, **named), outputs))
    return results


def writing(operator: Operator, names: list[str], written: dict[str, Any]) -> Callable[..., Any]:
    """A kernel for an operator that writes into its arguments: in place, or into ``out``, which it may resize."""
    returned = [
        next(name for name, one in written.items() if one.alias_info.before_set == result.alias_info.before_set)
        for result in operator._schema.returns
        if result.alias_info
    ]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        shapes = as_meta(given)
        operator(**shapes)
        for name in written:
            for real, meta in zip(tree_leaves(given[name]), tree_leaves(shapes[name]), strict=True):
                if isinstance(real, torch.Tensor) and real.shape != meta.shape:
                    real.resize_(meta.shape)
        inputs = as_cpu(given)
        launch(device_of(args, kwargs), lambda: operator(**inputs))
        results = [given[name] for name in returned]
        return results[0] if len(results) == 1 else tuple(results) or None

    return kernel


def at_once(operator: Operator, args: Any, kwargs: Any) -> Any:
    """The result of an operator once the stream has come to it."""
    device = device_of(args, kwargs)
    torch.cuda.current_stream(device).synchronize()
    with torch.no_grad():
        results = operator(*as_cpu(args), **as_cpu(kwargs))
    return tree_map(lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, results)


def copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """As CUDA copies: what is pageable is read before the call returns, and written before it."""
    host = next((tensor for tensor in (to, source) if tensor.device.type == "cpu"), None)
    pageable = host is not None and not (non_blocking and host.is_pinned())
    device = source.device if source.is_cuda else to.device
    bytes_from = source.clone() if pageable and host is source else alias(source)
    bytes_to = alias(to)
    stream, other = torch.cuda.current_stream(device), torch.cuda.current_stream(to.device if to.is_cuda else device)
    if other != stream:
        stream.wait_stream(other)
    launch(device, lambda: bytes_to.copy_(bytes_from))
    if other != stream:
        other.wait_stream(stream)
    if pageable and host is to:
        stream.synchronize()
    return to


# --- tensors


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a CPU tensor; a CPU tensor itself."""
    if not tensor.is_cuda:
        return tensor
    storage = tensor.untyped_storage()
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), torch.device("cpu"), storage.nbytes())
    seen = torch.empty(0, dtype=tensor.dtype, device="cpu")  # the program may have another default device
    seen.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    return seen.conj() if tensor.is_conj() else seen


def as_cpu(tree: Any) -> Any:
    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return alias(leaf) if leaf.is_cuda else leaf.clone()
        return placed(leaf, "cpu")

    return tree_map(convert, tree)


def as_meta(tree: Any) -> Any:
    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        return placed(leaf, "meta")

    return tree_map(convert, tree)


def placed(leaf: Any, device: str) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device(device)
    return None if isinstance(leaf, torch.Generator) else leaf


def empty_like(meta: Any, device: torch.device) -> Any:
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device=device) if meta is not None else None


def device_of(*trees: Any) -> torch.device:
    for leaf in tree_leaves(trees):
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            return leaf.device
    return torch.device("cuda", torch.cuda.current_device())


def store(results: Any, outputs: Any) -> None:
    for result, output in zip(tree_leaves(results), tree_leaves(outputs), strict=True):
        if output is not None:
            output.copy_(result)


# --- the stream


def launch(device: torch.device, closure: Closure) -> None:
    """Puts it on the current stream; a graph that captures it keeps it."""
    stream, ticket = torch.cuda.current_stream(device), next(tickets)
    launched[ticket] = closure, torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):  # which the default stream's handle, zero, does not say
        torch.cuda.check_error(runtime.cudaLaunchHostFunc(stream.cuda_stream, RUN, ticket))


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def run(ticket: int) -> None:
    closure, kept = launched[ticket]
    if not kept:
        del launched[ticket]
    try:
        with torch.no_grad():
            closure()
    except BaseException:  # on a GPU, a kernel's assertion
        traceback.print_exc()
        runtime.simcollDoubleFault(DEVICE_ASSERT)


RUN = ctypes.cast(run, ctypes.c_void_p)
