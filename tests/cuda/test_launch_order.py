"""In which order a process launches calls on its GPUs, whichever of its threads has proved them first."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch

from simcoll.cuda.launch_order import PATIENCE, LaunchOrder, Turn, patience, turn_on
from simcoll.wrapper.async_checks import noting_synchronization


def test_a_call_waits_for_those_that_the_program_made_before_it() -> None:
    order, launched = LaunchOrder(None), []
    turns = [Turn(order) for _ in range(8)]
    for turn in turns:
        turn.take()

    def launch(number: int) -> None:
        turns[number].come()
        launched.append(number)
        turns[number].end()

    threads = [threading.Thread(target=launch, args=(number,)) for number in reversed(range(8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert launched == list(range(8))


def test_a_call_that_is_given_up_holds_up_nobody() -> None:
    order = LaunchOrder(None)
    first, second = Turn(order), Turn(order)
    first.take()
    second.take()
    first.end()
    first.end()
    second.come()
    second.end()


def test_patience_ends_where_streams_do_not_wait_for_each_other() -> None:
    order = LaunchOrder(0.01)
    first, second = Turn(order), Turn(order)
    first.take()
    second.take()
    assert not order.come_to(second)
    second.end()
    assert order.come_to(first)


def test_who_waits_for_the_device_waits_for_what_is_not_launched_yet() -> None:
    order, looked = LaunchOrder(None), []
    first, second, later = (Turn(order) for _ in range(3))
    order.await_launches(lambda: looked.append("nothing to wait for"))
    first.take()
    second.take()

    def look_up() -> None:
        looked.append("waiting")
        if looked == ["waiting"]:
            later.take()
            second.end()
        else:
            first.end()

    order.await_launches(look_up, 0.001)
    assert looked == ["waiting", "waiting"]
    later.end()


def test_a_device_is_synchronised_after_the_launch_of_what_was_called() -> None:
    turn, done = Turn(), []
    turn.take()
    waiting = threading.Thread(target=noting_synchronization(lambda: done.append("synchronised")))
    waiting.start()
    done.append("launched")
    turn.end()
    waiting.join()
    assert done == ["launched", "synchronised"]


def test_calls_on_the_cpu_have_no_turn() -> None:
    assert turn_on(torch.device("cpu")) is turn_on(None) is None
    assert isinstance(turn_on(torch.device("cuda", 1)), Turn)


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, PATIENCE),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, PATIENCE),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, None),
        ({"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}, None),
    ],
)
def test_a_gpu_with_one_queue_waits_as_long_as_it_takes(environment: dict[str, str], seconds: float | None) -> None:
    assert patience(environment) == seconds


def test_nobody_waits_again_for_a_call_that_was_overtaken() -> None:
    order = LaunchOrder(0.01)
    late, first, second = (Turn(order) for _ in range(3))
    for turn in (late, first, second):
        turn.take()
    assert not order.come_to(first)
    first.end()
    assert order.come_to(second)
    assert order.come_to(late)


def test_an_overtaken_call_still_waits_for_nobody_behind_it() -> None:
    order = LaunchOrder(0.01)
    late, overtaker, later = (Turn(order) for _ in range(3))
    for turn in (late, overtaker, later):
        turn.take()
    assert not order.come_to(overtaker)
    assert not order.come_to(later)
    assert order.come_to(late)
