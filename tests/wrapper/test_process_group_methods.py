"""Every method of torch's ProcessGroup, by whatever name: recorded, given to the group inside, or left as it is.

A method that a newer torch adds is in none of the lists, and fails here until somebody has decided what it is.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from simcoll.spec.collectives import METHODS

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch._C._distributed_c10d import HashStore, ProcessGroup  # noqa: E402

from simcoll.wrapper.process_group import RecordedProcessGroup, lend_store  # noqa: E402

FORWARDED = {
    "_register_backend",
    "_set_default_backend",
    "_set_group_name",
    "_set_group_desc",
    "_start_coalescing",
    "_end_coalescing",
    "abort",
    "bound_device_id",
    "get_group_store",
    "merge_remote_group",
    "reconfigure",
    "register_pre_hook",
    "register_post_hook",
    "set_timeout",
    "shutdown",
    "split_group",
    "unregister_pre_hook",
    "unregister_post_hook",
}
"""What the group inside must hear of too, or alone."""

OF_BACKENDS = {
    "_add_ephemeral_timeout",
    "_backend_id",
    "_device_types",
    "_enable_collectives_timing",
    "_get_backend",
    "_get_backend_name",
    "_get_sequence_number_for_group",
    "_has_hooks",
    "_register_on_completion_hook",
    "_set_sequence_number_for_group",
    "_wait_for_pending_works",
    "get_backend",
    "get_reconfigure_handle",
    "name",
    "new_window",
    "rank",
    "register_abort_hook",
    "size",
    "supports_abort_hooks",
    "supports_completion_hooks",
    "supports_reconfigure",
    "supports_window",
    "unregister_abort_hook",
    "use_pg_for_symm_mem_rendezvous",
}
"""What the base class asks the backends, which both groups have in common."""

OWN = {"_id", "boxed", "unbox", "group_name", "group_desc", "_pybind11_conduit_v1_", "BackendType"}
"""What is a group's own: whoever asks wants the group that they hold."""


def _names() -> list[str]:
    values = set(ProcessGroup.BackendType.__members__)
    return [name for name in dir(ProcessGroup) if not name.startswith("__") and name not in values]


@pytest.mark.parametrize("name", _names())
def test_what_becomes_of_each_method_was_decided(name: str) -> None:
    own = name in vars(RecordedProcessGroup)
    assert own == (name in METHODS or name in FORWARDED), f"{name}: neither forwarded nor left to the base class"
    assert name in METHODS or name in FORWARDED | OF_BACKENDS | OWN


class _Plain:
    """Stands for the group inside: remembers what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.asked.append(name)


@pytest.mark.parametrize("name", [name for name in _names() if name in METHODS])
def test_a_call_that_is_not_recorded_reaches_the_group_inside(name: str) -> None:
    group = RecordedProcessGroup(HashStore(), 0, 1)
    group._inner = plain = _Plain()  # type: ignore[assignment]
    getattr(group, name)(torch.ones(1))
    assert plain.asked == [name]


def apart(test: Callable[[], None]) -> Callable[[], None]:
    """Run a test in a child: where a process has made a Gloo group, the ranks that other tests fork from it cannot."""

    @functools.wraps(test)
    def forked() -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                test()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    return forked


def _of_one() -> RecordedProcessGroup:
    group = RecordedProcessGroup(HashStore(), 0, 1)
    gloo = ProcessGroup.BackendType.GLOO
    group._set_default_backend(gloo)
    backend = dist.ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=5))
    group._register_backend(torch.device("cpu"), gloo, backend)
    return group


@pytest.mark.gloo
@apart
def test_both_groups_answer_alike() -> None:
    group = _of_one()
    group._set_group_name("alike")
    cpu = torch.device("cpu")
    for look in (
        lambda one: one._get_backend(cpu),
        lambda one: (one.rank(), one.size(), one.name(), one._get_backend_name(), one._device_types),
        lambda one: one._backend_id(ProcessGroup.BackendType.GLOO),
        lambda one: (one.group_name, one._get_sequence_number_for_group(), one._has_hooks()),
    ):
        assert look(group) == look(group.plain)


@pytest.mark.skipif(not hasattr(ProcessGroup, "register_pre_hook"), reason="torch has no hooks of groups before 2.15")
@pytest.mark.gloo
@apart
def test_hooks_are_called_once_for_each_call() -> None:
    group, seen = _of_one(), []
    group.register_pre_hook(1, lambda args: seen.append("before"))  # type: ignore[attr-defined]
    group.register_post_hook(2, lambda args: seen.append("after"))  # type: ignore[attr-defined]
    group.allreduce([torch.ones(1)]).wait()
    assert seen == ["before", "after"]
    group.unregister_pre_hook(1)  # type: ignore[attr-defined]
    group.unregister_post_hook(2)  # type: ignore[attr-defined]
    group.allreduce([torch.ones(1)]).wait()
    assert len(seen) == 2


def test_cpp_finds_the_store_of_a_recorded_group() -> None:
    """Symmetric memory asks C++ for it, whose answer no Python method changes."""
    store = HashStore()
    group = RecordedProcessGroup(store, 0, 2)
    assert ProcessGroup.get_group_store(group) is store
    del group
    store.set("alive", "yes")
    assert store.get("alive") == b"yes"


def test_a_store_is_lent_once_and_to_nobody_who_has_one() -> None:
    class Written(ProcessGroup):
        pass

    store, group = HashStore(), Written(0, 1)  # type: ignore[call-arg]
    assert lend_store(group, store)
    assert not lend_store(group, HashStore())
    assert not lend_store(Written(0, 1), None)  # type: ignore[call-arg]
    assert ProcessGroup.get_group_store(group) is store


@pytest.mark.gloo
@apart
def test_a_group_that_is_adopted_leaves_its_backend_bound() -> None:
    """A C++ group binds each backend that it is given to its own device, or to none."""
    plain = ProcessGroup(HashStore(), 0, 1)
    plain.bound_device_id = torch.device("cuda:0")
    gloo = ProcessGroup.BackendType.GLOO
    plain._set_default_backend(gloo)
    backend = dist.ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=5))
    plain._register_backend(torch.device("cpu"), gloo, backend)
    group = RecordedProcessGroup.adopt(plain, None)
    assert group.bound_device_id == plain.bound_device_id == torch.device("cuda:0")
    if hasattr(backend, "bound_device_id"):
        assert backend.bound_device_id == torch.device("cuda:0")
