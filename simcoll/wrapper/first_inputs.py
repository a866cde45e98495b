"""Digests of what enters the first layers of a model in one pass, up to the first random number and to the first
exchange with other ranks: where ranks with equal batches differ there, the model has taken each rank's part of a common
batch. What an exchange between layers brings, as of tokens with experts, differs anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from simcoll.recorder.dynamo import leave_uncompiled
from simcoll.values.choice import Choice
from simcoll.values.contents import Hasher, apart, first_elements, is_plain, plainly, unseen
from simcoll.values.guard import is_of_program
from simcoll.wrapper.random_states import random_state

_LAYERS = 4
_FIRST = 1 << 12
"""Elements that are looked at: the parts of a batch differ from their first rows on."""

_MOST_LAYERS = 4096


class FirstInputs:
    """What enters the first layers of a model, in the order of their calls. The hooks are there for one pass."""

    def __init__(
        self, model: nn.Module, state: str, received: Callable[[], int], choice: Choice, hashers: dict[int, Hasher]
    ) -> None:
        """``state`` is that of the random generators when the pass begins; ``received`` counts exchanges; the time
        counts against the budget of the ``choice``. ``hashers`` are kept from pass to pass.
        """
        self._hashers = hashers
        self._choice = choice
        self._state = state
        self._received, self._before = received, received()
        self._digests: list[torch.Tensor] = []
        self._handles: list[Any] = []
        _calling(self._hook)(model)

    def _hook(self, model: nn.Module) -> None:
        modules = [*model.modules()]
        layers = [one for one in modules if _is_layer(one)]
        if any(map(_is_compiled, modules)) or len(layers) > _MOST_LAYERS:
            return
        enter, leave = _calling(self._enter), _calling(self.close)
        # Also where the pass raises: a model with such hooks cannot be pickled.
        self._handles.append(model.register_forward_hook(leave, always_call=True))
        for one in layers:
            self._handles.append(one.register_forward_pre_hook(enter))

    def _enter(self, layer: nn.Module, args: tuple[object, ...]) -> None:
        # In this order: a compiler that follows the hook cannot represent the handles.
        if torch.compiler.is_compiling() or not self._handles:
            return
        with self._choice.counted(), unseen():
            self._look(args)

    def _look(self, args: tuple[object, ...]) -> None:
        # What an exchange brings to the very first layer is a rank's part of the batch.
        exchanged = bool(self._digests) and self._received() != self._before
        if len(self._digests) >= _LAYERS or exchanged or random_state() != self._state:
            self.close()
            return
        for tensor in (one for one in args if isinstance(one, torch.Tensor) and is_plain(one)):
            with apart():
                hasher = self._hashers.setdefault(len(self._digests), Hasher())
                self._digests.append(hasher.digests([first_elements(plainly(tensor).detach(), _FIRST)]))

    def close(self, *unused: object) -> None:
        """Look at no other layer."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    @property
    def digests(self) -> torch.Tensor:
        """A number for each tensor that entered the layers, where it was."""
        none = torch.empty(0, dtype=torch.int64, device=self._digests[0].device if self._digests else "cpu")
        return torch.cat([none, *(one for one in self._digests if one.device == none.device)])


def _is_layer(module: nn.Module) -> bool:
    """True for a module that holds parameters itself; those of TorchScript take no such hooks."""
    held = any(one is not None for one in module._parameters.values())
    return held and not isinstance(module, torch.jit.ScriptModule)


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


def _calling(function: Callable[..., None]) -> Callable[..., None]:
    """A hook that changes nothing of the pass, whatever happens in it but what interrupts the program itself."""

    def hook(*args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            if is_of_program(error):
                raise
            # The evidence that it would have given excuses ranks; without it the verifier has the gradients.
            return

    leave_uncompiled(hook)
    return hook
