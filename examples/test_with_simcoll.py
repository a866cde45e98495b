"""Tests of distributed code, as a project has them: on every rank, without a launcher, failed by any error found.

Run: pytest examples/test_with_simcoll.py
simcoll: passes
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist

from simcoll.testing import Comm, FindingsError

Row: TypeAlias = npt.NDArray[np.float64]

# What is tested: two functions of the project's own, one for each kind of array.


def shift(comm: Comm, row: Row) -> Row:
    """Give every rank the row of the rank before it."""
    received = np.empty_like(row)
    request = comm.isend(row, (comm.rank + 1) % comm.size)
    comm.recv(received, (comm.rank - 1) % comm.size)
    request.wait()
    return received


def global_mean(values: torch.Tensor) -> torch.Tensor:
    """The mean over all ranks, of which each may have another number of values."""
    stated = torch.stack([values.sum(), torch.tensor(float(len(values)))])
    dist.all_reduce(stated)
    return stated[0] / stated[1]


# The tests.


@pytest.mark.simcoll(world_size=[2, 3, 8])
def test_shift_moves_each_row_by_one(comm: Comm, rank: int, world_size: int) -> None:
    row = shift(comm, np.full(4, float(rank)))
    assert row.tolist() == [(rank - 1) % world_size] * 4


@pytest.mark.simcoll(world_size=4, explore=50)
def test_shift_works_in_every_order_that_is_tried(comm: Comm) -> None:
    shift(comm, np.zeros(4))


@pytest.mark.simcoll(world_size=4, backend=["threaded", "gloo"])
def test_the_mean_counts_values_and_not_ranks(rank: int) -> None:
    assert global_mean(torch.arange(rank + 1.0)) == pytest.approx(1.0)


def test_a_blocking_send_would_be_found_to_deadlock(simcoll_ranks: Callable[..., object]) -> None:
    def shift_that_blocks(comm: Comm) -> None:
        row = np.zeros(4)
        comm.send(row, (comm.rank + 1) % comm.size)
        comm.recv(row, (comm.rank - 1) % comm.size)

    with pytest.raises(FindingsError, match="SC204 deadlock-cycle"):
        simcoll_ranks(3, shift_that_blocks)
    # What works in MPI for small messages alone: sends that are buffered.
    simcoll_ranks(3, shift_that_blocks, sends="buffered")
