"""The shards that FSDP2 is given in a dry run are those that it would have cut itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_common

from simcoll.dryrun.rank.torch_patches import LazyShards


@given(size=st.integers(1, 40), other=st.integers(1, 3), count=st.integers(1, 20), dim=st.integers(0, 1))
def test_each_shard_is_the_one_that_torch_cuts(size: int, other: int, count: int, dim: int) -> None:
    shape = (size, other) if dim == 0 else (other, size)
    tensor = torch.arange(size * other).view(shape)
    wanted = _fsdp_common._chunk_with_empty(tensor, count, dim)
    found = LazyShards(tensor, count, dim)
    assert len(found) == len(wanted)
    assert [shard.tolist() for shard in found] == [shard.tolist() for shard in wanted]
    assert [shard.tolist() for shard in found[1:3]] == [shard.tolist() for shard in wanted[1:3]]
    assert all(one.data_ptr() == other.data_ptr() for one, other in zip(found, wanted, strict=True) if one.numel())


def test_there_are_no_more_than_that() -> None:
    with pytest.raises(IndexError, match="shard 3 of 3"):
        LazyShards(torch.ones(5), 3, 0)[3]
