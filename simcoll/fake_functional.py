"""Has functional collectives on fake tensors reach their group, as they do on real ones.

torch gives fake tensors the shapes of the result without asking the group; nobody would know of the call.
"""

from __future__ import annotations

from typing import Any

from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode

from simcoll.dispatched import answers_itself

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")


class FunctionalCalls(TorchDispatchMode):
    """Stands before the mode of fake tensors: the operators of functional collectives run as written in C++."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim" or any(answers_itself(kind) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        if func.namespace not in _NAMESPACES or not func.has_kernel_for_dispatch_key(_KERNEL):
            return func(*args, **kwargs)
        return func._op_dk(_KERNEL, *args, **kwargs)


_KERNEL = DispatchKey.CompositeExplicitAutograd
