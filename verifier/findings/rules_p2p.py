"""Rules about send and receive, and about groups: SC301 to SC401."""

from __future__ import annotations

from simcoll.verifier.findings.rule import Rule

MEMBERSHIP_MISMATCH = Rule(
    "SC401",
    "group-membership-mismatch",
    "Call new_group on every rank, with the same ranks, in the same order.",
    means="Ranks created a group with other members, created groups in another order, or some did not create it.",
    harm=(
        "Names and connections are derived from the order of creation: the ranks talk past each other until a timeout."
    ),
    example=(
        "if rank < 2:\n    first = dist.new_group([0, 1])\neverybody = dist.new_group()\ndist.barrier(group=everybody)"
    ),
    remedy=(
        "Create all groups on all ranks in one order, also those of which a rank is no member; or use "
        "use_local_synchronization=True, which asks the members only."
    ),
)

P2P_SIZE_MISMATCH = Rule(
    "SC301",
    "p2p-size-mismatch",
    "Give send and recv tensors of one size; send the size first if it varies.",
    means="A message has another number of elements than the buffer that receives it.",
    harm=(
        "Gloo aborts the receiving process where the buffer is too small (SIGABRT, without a Python traceback), and "
        "fills a part of it silently where it is too large; NCCL hangs or truncates."
    ),
    example=("if rank == 0:\n    dist.send(torch.ones(10), dst=1)\nelse:\n    dist.recv(torch.empty(8), src=0)"),
    remedy="Agree on the shape beforehand, or send it ahead of the data.",
)

P2P_DTYPE_MISMATCH = Rule(
    "SC302",
    "p2p-dtype-mismatch",
    "Convert to one dtype before the send, and allocate the receive buffer with it.",
    means=(
        "Sender and receiver of a message name different element types. Raw bytes (uint8) that fill the buffer "
        "exactly, and complex numbers received as real ones, are taken as meant."
    ),
    harm="Bytes arrive and are read as numbers of another type: silent nonsense.",
    example=(
        "if rank == 0:\n"
        "    dist.send(torch.ones(8, dtype=torch.int32), dst=1)\n"
        "else:\n"
        "    dist.recv(torch.empty(8), src=0)"
    ),
    remedy="Look for autocast on one pipeline stage only, and for a default dtype that was changed.",
)

P2P_TAG_MISMATCH = Rule(
    "SC303",
    "p2p-tag-mismatch",
    "Use the same tag on both ends.",
    means=(
        "One rank waits for its message to be received, the other waits for a message from it, and only the tags "
        "differ."
    ),
    harm=(
        "Both wait for a partner that is already there, until the timeout. NCCL ignores tags and pairs messages in "
        "order."
    ),
    example=("if rank == 0:\n    dist.send(x, dst=1, tag=1)\nelse:\n    dist.recv(x, src=0, tag=2)"),
    remedy=(
        "Derive tags from one formula on both ends, such as the micro-batch number. Where each rank makes the other's "
        "call later, the order is wrong instead: receive in the order of sending, or use isend and irecv."
    ),
)

P2P_UNMATCHED = Rule(
    "SC304",
    "p2p-unmatched",
    "Add the missing half, or remove the one that is left over.",
    means="A send has no receive, or a receive has no send, and the other rank is past making it.",
    harm=(
        "A receive waits for ever, and so does a send on Gloo, whatever its size; an isend that nobody waits for is "
        "lost without a word (a warning)."
    ),
    example=("if rank == 0:\n    dist.recv(x, src=1)  # rank 1 never sends"),
    remedy=(
        "Count both ends: one of the loops usually runs once more than the other, or a rank was given as a group rank "
        "where a global one is meant."
    ),
)

PAIR_RULES = (
    P2P_SIZE_MISMATCH,
    P2P_DTYPE_MISMATCH,
    P2P_TAG_MISMATCH,
    P2P_UNMATCHED,
    MEMBERSHIP_MISMATCH,
)
