"""One rank without peers gets what the table's own meaning gives it where all ranks have its inputs."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")


from simcoll.dryrun.rank.fake_group import symmetric_outputs
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import spec_of

torch = pytest.importorskip("torch")

RANKS = 3
REDUCE_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


def buffers(*sizes: int, dtype: str = "int64") -> tuple[Buffer, ...]:
    return tuple(Buffer((size,), dtype, "cpu", None, None) for size in sizes)


CALLS = [
    *(Call("all_reduce", "allreduce", buffers(6), buffers(6), reduce_op=op) for op in REDUCE_OPS),
    Call("reduce", "reduce", buffers(6), buffers(6), reduce_op="sum", root=1),
    Call("broadcast", "broadcast", buffers(6), buffers(6), root=0),
    Call("all_gather", "allgather", buffers(6), buffers(6, 6, 6)),
    Call("all_gather", "_allgather_base", buffers(6), buffers(18)),
    Call("all_gather", "allgather_into_tensor_coalesced", buffers(6, 2), buffers(18, 6), coalesced=True),
    Call("reduce_scatter", "reduce_scatter", buffers(6, 6, 6), buffers(6), reduce_op="sum"),
    Call("reduce_scatter", "_reduce_scatter_base", buffers(6), buffers(2), reduce_op="max"),
    Call("reduce_scatter", "reduce_scatter_tensor_coalesced", buffers(6, 3), buffers(2, 1), "sum", coalesced=True),
    Call("all_to_all", "alltoall_base", buffers(6), buffers(6)),
    Call("all_to_all", "alltoall", buffers(2, 2, 2), buffers(2, 2, 2)),
]


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.spelling}-{call.reduce_op}")
def test_the_result_is_that_of_equal_ranks(call: Call, rank: int) -> None:
    random = np.random.default_rng(0)
    inputs = [random.integers(-4, 9, buffer.shape) for buffer in call.inputs]
    expected = spec_of(call).result([call] * RANKS, [inputs] * RANKS)[rank]
    found = symmetric_outputs(call, rank, RANKS, inputs)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            np.testing.assert_array_equal(one.reshape(other.shape), other)


def test_a_gathered_input_is_repeated_without_a_copy() -> None:
    given = np.arange(6)
    for call in (
        Call("all_gather", "_allgather_base", buffers(6), buffers(18)),
        Call("all_gather", "allgather", buffers(6), buffers(6, 6, 6)),
    ):
        assert all(
            found is not None and np.shares_memory(found, given) for found in symmetric_outputs(call, 1, 3, [given])
        )


def test_uneven_parts_fill_what_is_expected() -> None:
    call = Call("all_to_all", "alltoall_base", buffers(3), buffers(5), input_splits=(0, 2, 1), output_splits=(1, 2, 2))
    (found,) = symmetric_outputs(call, 1, RANKS, [np.array([7, 8, 9])])
    assert found is not None
    assert found.tolist() == [7, 8, 7, 8, 7]


def test_what_nobody_knows_is_zero() -> None:
    call = Call("recv", "recv", (), buffers(2), peer=1, tag=0)
    (found,) = symmetric_outputs(call, 0, 2, [])
    assert found is not None
    assert found.tolist() == [0, 0]


def test_a_fake_group_answers_at_once() -> None:
    from simcoll.dryrun.rank.fake_group import FakeProcessGroup

    group = FakeProcessGroup(2, 5, store=torch.distributed.HashStore())
    tensor, gathered = torch.tensor([1.0, 2.0]), torch.empty(10, dtype=torch.bfloat16)
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [5.0, 10.0]
    group._allgather_base(gathered, torch.tensor([1.5, 2.0], dtype=torch.bfloat16)).wait()
    assert gathered.tolist() == [1.5, 2.0] * 5


def test_tensors_without_memory_are_left_alone() -> None:
    from simcoll.dryrun.rank.fake_group import FakeProcessGroup

    group = FakeProcessGroup(0, 4, store=torch.distributed.HashStore())
    work = group.allreduce([torch.empty(1 << 50, device="meta")])
    assert work.wait()
    assert work.get_future().done()
