"""Gives a process group that is written in Python the store that C++ asks it for.

Symmetric memory (``CUDASymmetricMemory.cu``, ``NCCLSymmetricMemory.cu``) and NVSHMEM resolve a group by its name and
meet in ``ProcessGroup::getStore()``, which is not virtual. Of the constructors that take a store, only torch 2.15's
makes a group that C++ calls back; before it, such a group has none, and a rendezvous would follow a null pointer.
"""

from __future__ import annotations

import ctypes

from torch._C._distributed_c10d import ProcessGroup, Store

_STORE = 16
"""Where ``store_`` stands in a ``c10d::ProcessGroup``, in bytes: behind the pointer to the virtual functions and the
counts of ``c10::intrusive_ptr_target`` (torch 2.11 to 2.15).
"""


def lend_store(group: ProcessGroup, store: Store | None) -> bool:
    """Have C++ find ``store`` in a group that was made without one; whether it does.

    A plain group is made with the store, and its reference moved over, so that no count changes. Nothing is touched
    where the memory of the two does not look as it does in the versions that are known.
    """
    if store is None or ProcessGroup.get_group_store(group) is not None:
        return False
    donor = ProcessGroup(store, group.rank(), group.size())
    theirs, ours = _field(donor), _field(group)
    if not theirs.value or ours.value:
        return False
    ours.value, theirs.value = theirs.value, 0
    if ProcessGroup.get_group_store(group) is store and ProcessGroup.get_group_store(donor) is None:
        return True
    ours.value, theirs.value = 0, ours.value
    return False


def _field(group: ProcessGroup) -> ctypes.c_uint64:
    address: int = group._id()  # type: ignore[attr-defined]  # not in torch's stubs
    return ctypes.c_uint64.from_address(address + _STORE)
