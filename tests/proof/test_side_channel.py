"""The side channel: sums of words, documents where they differ, and who did not come."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

from simcoll.proof.side_channel import ChannelBrokenError, SideChannel
from simcoll.proof.store import PolledStore, StoreConnection

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

LONG, SHORT = timedelta(seconds=10), timedelta(seconds=1)


def channel(ranks: Any, rank: int, size: int) -> SideChannel:
    store = StoreConnection(ranks.store(f"channel {ranks.boxes}"))
    return SideChannel(PolledStore(store), rank, size, lambda: LONG)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_words_add_up_modulo_two_to_the_64(ranks: Any, size: int) -> None:
    words = [[(1 << 64) - 1, 3, 1 << 63], [1, 4, 1 << 63]]

    def program(rank: int) -> object:
        words_of_others = [0, rank, 0]
        own = channel(ranks, rank, size)
        return [own.total(word, LONG) for word in (words[rank] if rank < 2 else words_of_others)]

    expected = [0, 7 + sum(range(2, size)), 0]
    assert ranks(program, size, mode=None, backend=None) == [expected] * size


def test_documents_reach_every_rank(ranks: Any) -> None:
    def program(rank: int) -> object:
        own = channel(ranks, rank, 3)
        return [own.exchange(str(sequence), {"rank": rank, "text": "é" * sequence}) for sequence in (1, 2)]

    expected = [{rank: {"rank": rank, "text": "é" * sequence} for rank in range(3)} for sequence in (1, 2)]
    assert ranks(program, 3, mode=None, backend=None) == [expected] * 3


@pytest.mark.parametrize("first", [True, False])
def test_ranks_that_do_not_come_are_named_and_a_new_generation_works(ranks: Any, first: bool) -> None:
    def program(rank: int) -> object:
        own, store = channel(ranks, rank, 4), ranks.store(f"order {ranks.boxes}")
        if not first:
            assert own.total(1, LONG) == 4
        if rank in (1, 3):
            store.wait(["0 knows", "2 knows"])
        error = ranks.error_of(lambda: own.total(1, SHORT))
        store.set(f"{rank} knows", "")
        assert isinstance(error, ChannelBrokenError)
        return error.absent, own.total(5, LONG)

    answers = ranks(program, 4, mode=None, backend=None)
    assert answers[0] == answers[2] == ((1, 3), 20)
    assert [total for _, total in answers] == [20] * 4


def test_a_closed_channel_is_made_anew(ranks: Any) -> None:
    def program(rank: int) -> object:
        own = channel(ranks, rank, 2)
        totals = []
        for _ in range(3):
            totals.append(own.total(2, LONG))
            own.close()
        return totals

    assert ranks(program, mode=None, backend=None) == [[4, 4, 4]] * 2
