"""The operators of functional collectives: which c10d method each stands for, and what its result is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Tensors = list[torch.Tensor]
Results = Callable[[Tensors, Mapping[str, Any], int, int], Any]
"""From inputs, arguments, the group's size and this rank's place in it: tensors of the result's shapes."""


@dataclass(frozen=True, slots=True)
class Functional:
    """One operator of the namespace ``_c10d_functional``."""

    method: str
    results: Results


def _copy(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return inputs[0].clone()


def _copies(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> Tensors:
    return [tensor.clone() for tensor in inputs]


def _same(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return inputs[0]


def _all_same(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> Tensors:
    return inputs


def _gathered(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return torch.cat([inputs[0]] * size)


def _all_gathered(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> Tensors:
    return [torch.cat([tensor] * size) for tensor in inputs]


def _part(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return inputs[0].chunk(size)[rank].clone()


def _parts(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> Tensors:
    return [tensor.chunk(size)[rank].clone() for tensor in inputs]


def _out(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    out: torch.Tensor = given["out"]
    return out.zero_()


def _exchanged(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return inputs[0].new_zeros((sum(given["output_split_sizes"]), *inputs[0].shape[1:]))


FUNCTIONAL: Mapping[str, Functional] = {
    "all_reduce": Functional("allreduce", _copy),
    "all_reduce_": Functional("allreduce", _same),
    "all_reduce_coalesced": Functional("allreduce_coalesced", _copies),
    "all_reduce_coalesced_": Functional("allreduce_coalesced", _all_same),
    "all_gather_into_tensor": Functional("_allgather_base", _gathered),
    "all_gather_into_tensor_out": Functional("_allgather_base", _out),
    "all_gather_into_tensor_coalesced": Functional("allgather_into_tensor_coalesced", _all_gathered),
    "reduce_scatter_tensor": Functional("_reduce_scatter_base", _part),
    "reduce_scatter_tensor_out": Functional("_reduce_scatter_base", _out),
    "reduce_scatter_tensor_coalesced": Functional("reduce_scatter_tensor_coalesced", _parts),
    "all_to_all_single": Functional("alltoall_base", _exchanged),
    "broadcast": Functional("broadcast", _copy),
    "broadcast_": Functional("broadcast", _same),
    "isend": Functional("send", _same),
    "irecv": Functional("recv", _same),
}
"""By name, all but ``wait_tensor`` and ``batch_p2p_ops``, which stand for no one call."""
