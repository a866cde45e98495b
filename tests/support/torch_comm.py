"""The methods of a simulated rank's communicator, over torch.distributed: what plays a random program on real groups.

It is run under a file name that simcoll takes for generated code (:func:`tests.support.playing.torch_comm`), so that
findings name the lines of the program and not those of this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

ANY_SOURCE = -1


class TorchComm:
    """One rank's side of a group; ``rank`` is its group rank."""

    def __init__(self, group: Any = None) -> None:
        self._group = dist.group.WORLD if group is None else group
        self.rank, self.size = self._group.rank(), self._group.size()

    def call(self, spelling: str, inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), **stated: Any) -> None:
        """Make a call by its c10d method: through torch.distributed's function for it where there is one."""
        work = self._make(spelling, list(inputs), list(outputs), False, **stated)
        if work is not None:
            work.wait()

    def post(self, spelling: str, inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), **stated: Any) -> Any:
        """Begin a call, asynchronously."""
        return self._make(spelling, list(inputs), list(outputs), True, **stated)

    def _make(
        self,
        spelling: str,
        inputs: list[Any],
        outputs: list[Any],
        asynchronous: bool,
        *,
        reduce_op: str | None = None,
        root: int | None = None,
        input_splits: Sequence[int] | None = None,
        output_splits: Sequence[int] | None = None,
    ) -> Any:
        group: Any = self._group
        how: dict[str, Any] = {"group": group, "async_op": asynchronous}
        op: dict[str, Any] = {} if reduce_op is None else {"op": getattr(dist.ReduceOp, reduce_op.upper())}
        parts = {"input_split_sizes": _listed(input_splits), "output_split_sizes": _listed(output_splits)}
        functions = {
            "allreduce": lambda: dist.all_reduce(inputs[0], **op, **how),
            "broadcast": lambda: dist.broadcast(inputs[0], group_src=root, **how),
            "reduce": lambda: dist.reduce(inputs[0], group_dst=root, **op, **how),
            "allgather": lambda: dist.all_gather(outputs, inputs[0], **how),
            "all_gather_single": lambda: dist.all_gather_single(outputs[0], inputs[0], **how),
            "gather": lambda: dist.gather(inputs[0], outputs or None, group_dst=root, **how),
            "scatter": lambda: dist.scatter(outputs[0], inputs or None, group_src=root, **how),
            "reduce_scatter": lambda: dist.reduce_scatter(outputs[0], inputs, **op, **how),
            "reduce_scatter_single": lambda: dist.reduce_scatter_single(outputs[0], inputs[0], **op, **how),
            "alltoall": lambda: dist.all_to_all(outputs, inputs, **how),
            "alltoall_base": lambda: dist.all_to_all_single(outputs[0], inputs[0], **parts, **how),
            "barrier": lambda: dist.barrier(**how),
            "monitored_barrier": lambda: dist.monitored_barrier(group),
            "_allgather_base": lambda: group._allgather_base(outputs[0], inputs[0]),
            "_reduce_scatter_base": lambda: group._reduce_scatter_base(
                outputs[0], inputs[0], _options("ReduceScatterOptions", op)
            ),
            "allreduce_coalesced": lambda: group.allreduce_coalesced(inputs, _options("AllreduceCoalescedOptions", op)),
            "allgather_coalesced": lambda: group.allgather_coalesced(_rows(outputs, len(inputs)), inputs),
            "allgather_into_tensor_coalesced": lambda: group.allgather_into_tensor_coalesced(outputs, inputs),
            "reduce_scatter_tensor_coalesced": lambda: group.reduce_scatter_tensor_coalesced(
                outputs, inputs, _options("ReduceScatterOptions", op)
            ),
        }
        return functions[spelling]()

    def send(self, array: Any, dst: int, tag: int = 0) -> None:
        """Send, and wait until it is received."""
        dist.send(array, group=self._group, tag=tag, group_dst=dst)

    def recv(self, array: Any, src: int = ANY_SOURCE, tag: int = 0) -> int:
        """Receive from a rank, or from any; gives the sender's rank."""
        if src == ANY_SOURCE:
            return dist.get_group_rank(self._group, dist.recv(array, group=self._group, tag=tag))
        dist.recv(array, group=self._group, tag=tag, group_src=src)
        return src

    def isend(self, array: Any, dst: int, tag: int = 0) -> Any:
        """Begin to send."""
        return dist.isend(array, group=self._group, tag=tag, group_dst=dst)

    def irecv(self, array: Any, src: int = ANY_SOURCE, tag: int = 0) -> Any:
        """Begin to receive."""
        return dist.irecv(array, group=self._group, tag=tag, group_src=None if src == ANY_SOURCE else src)

    def batch_isend_irecv(self, operations: Sequence[tuple[str, Any, int, int]]) -> list[Any]:
        """Begin several messages."""
        begin = {"send": dist.isend, "recv": dist.irecv}
        return dist.batch_isend_irecv(
            [
                dist.P2POp(begin[name], array, group=self._group, tag=tag, group_peer=peer)
                for name, array, peer, tag in operations
            ]
        )

    def all_gather_object(self, value: object) -> list[Any]:
        """Everybody's value."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def gather_object(self, value: object, root: int = 0) -> list[Any] | None:
        """Everybody's value on the root."""
        values: list[Any] | None = [None] * self.size if self.rank == root else None
        dist.gather_object(value, values, group=self._group, group_dst=root)
        return values

    def broadcast_object_list(self, values: list[Any], root: int = 0) -> None:
        """The root's values."""
        dist.broadcast_object_list(values, group=self._group, group_src=root)

    def scatter_object_list(self, values: Sequence[object] | None = None, root: int = 0) -> Any:
        """This rank's value of the root's."""
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, None if values is None else list(values), group=self._group, group_src=root)
        return mine[0]

    def new_group(self, ranks: Sequence[int] | None = None) -> TorchComm | None:
        """Make a group; None for an outsider."""
        group: Any = dist.new_group(ranks)
        return None if group is dist.GroupMember.NON_GROUP_MEMBER else TorchComm(group)

    def state_parameters(self, named: Mapping[str, Any]) -> None:
        """Give a model of these parameters to DistributedDataParallel."""
        model = torch.nn.Module()
        for name, value in named.items():
            model.register_parameter(name, torch.nn.Parameter(value, requires_grad=value.is_floating_point()))
        torch.nn.parallel.DistributedDataParallel(model, process_group=self._group)

    def outside(self, function: str) -> None:
        """Make a call on a group of others."""
        getattr(dist, function)(torch.ones(1), group=dist.GroupMember.NON_GROUP_MEMBER)

    def destroy(self) -> None:
        """Give the group up."""
        dist.destroy_process_group(self._group)


def _listed(splits: Sequence[int] | None) -> list[int] | None:
    return None if splits is None else list(splits)


def _options(kind: str, op: Mapping[str, Any]) -> Any:
    options = getattr(c10d, kind)()
    options.reduceOp = op["op"]
    return options


def _rows(outputs: list[Any], width: int) -> list[list[Any]]:
    return [outputs[at : at + width] for at in range(0, len(outputs), width)]
