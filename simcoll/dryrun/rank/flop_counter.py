"""Counts a rank's computation between its calls while its script runs: FLOPs by dtype, and bytes moved.

FLOPs follow torch's own formulas (torch.utils.flop_counter), for tensors with memory and for fake ones; bytes are those
of the tensors that an operator reads and writes, except for views.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.fake_cuda import FakeCudaStream, Streams
from simcoll.dryrun.rank.tensor_marks import tensors_in
from simcoll.pricing.device_ops import DeviceOrder, Key
from simcoll.wrapper.dispatch_mode import answers_itself
from simcoll.wrapper.work import RecordedWork

_ALLOCATES = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_")
)
_CALLS = ("c10d", "_c10d_functional")
_HELD_BACK = frozenset(("aten::_local_scalar_dense", "aten::item"))


class WorkCounter(TorchDispatchMode):
    """Adds every operator, and the calls of a :class:`RecordedFakeGroup`, to a :class:`DeviceOrder`."""

    supports_higher_order_operators = True

    def __init__(self, patches: Patches, order: DeviceOrder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._order = order
        self.streams = Streams(order)
        modules = [torch.cpu, torch.cuda, torch.accelerator]
        # torch.Stream, which C++ uses too, stays as it is, unless a dry run has replaced it.
        named: object = torch.Stream
        modules += [torch] if named is FakeCudaStream else []
        for module in modules:
            self.streams.install(patches, module)
        # The calls whose results a storage holds, where waits in C++ are not seen; the storage is kept for its address.
        self._unseen: dict[int, tuple[torch.UntypedStorage, frozenset[Key]]] = {}
        self._aside = 0
        self._first: int | None = None
        register_optimizer_step_post_hook(self._stepped)
        patches.wrap(torch.futures.Future, "then", self._setting_callbacks_aside)

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)  # type: ignore[no-untyped-call]
        self._order.end()

    def called(self, key: Key, result: Any, outputs: Iterable[torch.Tensor], *, coalescing: bool) -> None:
        """Note a call of a group, with its Work as ``result``."""
        later = isinstance(result, RecordedWork) and not coalescing
        self.streams.launch(key, waits=not later)
        if later:
            result.tell_when_waited(lambda: self._waited(key))
            self._follow(outputs, frozenset((key,)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            # The operators inside it are not counted: they mostly make random numbers.
            return func(*args, **(kwargs or {}))
        if func.namespace == "prim" or any(answers_itself(kind) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        name = func._schema.name
        given = list(tensors_in((*args, *kwargs.values())))
        used = self._used(given) if self._unseen and not func.is_view and func.namespace not in _CALLS else frozenset()
        if not self._aside:
            for key in used:
                self._waited(key)
        if name in _HELD_BACK:
            self._order.hold()
        result = func(*args, **kwargs)
        if func.namespace in ("aten", "fsdp") and not func.is_view and name not in _ALLOCATES:
            self._count(func, args, kwargs, result, given)
        if self._aside and used:
            self._follow([*tensors_in((result,)), *(given if func._schema.is_mutable else ())], used)
        return result

    def _count(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any, given: list[torch.Tensor]) -> None:
        flops = _flops(func, args, kwargs, result)
        made = list(tensors_in(result if isinstance(result, (tuple, list)) else (result,)))
        size = sum(tensor.numel() * tensor.element_size() for tensor in (*given, *made))
        if size:
            self._order.compute(_dtype(given) + _kind(func, args, kwargs) if flops else "", flops, size)

    def _used(self, given: Iterable[torch.Tensor]) -> frozenset[Key]:
        """The calls whose results these tensors hold: an operator that uses them runs after a wait for the calls."""
        storages = [storage for tensor in given if (storage := _storage(tensor)) is not None]
        found = [self._unseen[storage._cdata][1] for storage in storages if storage._cdata in self._unseen]
        return frozenset[Key]().union(*found)

    def _follow(self, tensors: Iterable[torch.Tensor], keys: frozenset[Key]) -> None:
        """Note that these tensors hold the results of calls."""
        for tensor in tensors:
            if (storage := _storage(tensor)) is not None:
                self._unseen[storage._cdata] = storage, keys

    def _waited(self, key: Key) -> None:
        self._unseen = {number: found for number, found in self._unseen.items() if key not in found[1]}
        self.streams.wait(key)

    def _setting_callbacks_aside(self, then: Callable[..., Any]) -> Callable[..., Any]:
        """``Future.then`` whose callbacks (DistributedDataParallel's hooks) do not make the program's streams wait."""

        def set_aside(given: Any, callback: Callable[[Any], Any]) -> Any:
            def run(ended: Any) -> Any:
                self._aside += 1
                try:
                    return callback(ended)
                finally:
                    self._aside -= 1

            return then(given, run)

        return set_aside

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """End a step of the program at each step of the optimiser that made the first one."""
        self._first = self._first or id(optimizer)
        if self._first == id(optimizer):
            self._order.step()


def _flops(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> int:
    """The FLOPs of an operator; 0 where a formula does not know the arguments, since the script must go on."""
    formula = _FORMULAS.get(func._overloadpacket)
    if formula is None:
        return 0
    with contextlib.suppress(Exception):
        return int(formula(*args, **kwargs, out_val=result))
    return 0


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None where it has no single one, such as a sparse tensor."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return tensor.untyped_storage()
    return None


def _dtype(given: Iterable[torch.Tensor]) -> str:
    """The dtype of the first tensor; tf32 where the program allows that for float32."""
    name = next((str(tensor.dtype).removeprefix("torch.") for tensor in given), "float32")
    fast = torch.backends.cuda.matmul.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
    return "tf32" if name == "float32" and fast else name


def _kind(func: Any, args: Any, kwargs: Mapping[str, Any]) -> str:
    """The suffix of attention's dtype, since attention has a speed of its own; causal kernels leave out half of it."""
    if "attention" not in func._schema.name:
        return ""
    names = [one.name for one in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    return " causal attention" if given.get("is_causal") is True else " attention"


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape))


def _formulas() -> dict[Any, Callable[..., int]]:
    """Torch's formulas, and those of the attention kernels that a CPU chooses in place of a GPU's."""
    aten = torch.ops.aten
    found: dict[Any, Callable[..., int]] = dict(flop_registry)
    for name, formula in (("", _attention), ("_backward", _attention_backward)):
        packet = getattr(aten, f"_scaled_dot_product_flash_attention_for_cpu{name}", None)
        if packet is not None:
            found.setdefault(packet, formula)
    return found


_FORMULAS = _formulas()
