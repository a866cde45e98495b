"""Rules about send and receive, and about groups: SC301 to SC401."""

from __future__ import annotations

from simcoll.verifier.findings.rule import Rule

MEMBERSHIP_MISMATCH = Rule(
    "SC401",
    "group-membership-mismatch",
    "Call new_group on every rank, with the same ranks, in the same order.",
    means=(
        "Ranks created a group with different members, created groups in a different order, or some did not create it."
    ),
    harm=(
        "Names and connections of groups are derived from the order of creation, so the ranks use different "
        "connections and wait for each other until a timeout."
    ),
    example=(
        "if rank < 2:\n    first = dist.new_group([0, 1])\neverybody = dist.new_group()\ndist.barrier(group=everybody)"
    ),
    remedy=(
        "Create all groups on all ranks in the same order, including groups that a rank does not belong to; or use "
        "use_local_synchronization=True, which involves the members only."
    ),
)

P2P_SIZE_MISMATCH = Rule(
    "SC301",
    "p2p-size-mismatch",
    "Give send and recv tensors of one size; send the size first if it varies.",
    means="A message has a different number of elements than the buffer that receives it.",
    harm=(
        "Gloo aborts the receiving process if the buffer is too small (SIGABRT, without a Python traceback), and "
        "fills a part of it silently if it is too large; NCCL hangs or truncates."
    ),
    example=("if rank == 0:\n    dist.send(torch.ones(10), dst=1)\nelse:\n    dist.recv(torch.empty(8), src=0)"),
    remedy="Agree on the shape beforehand, or send it before the data.",
)

P2P_DTYPE_MISMATCH = Rule(
    "SC302",
    "p2p-dtype-mismatch",
    "Convert to one dtype before the send, and allocate the receive buffer with it.",
    means=(
        "Sender and receiver of a message name different element types. Raw bytes (uint8) that fill the buffer "
        "exactly, and complex numbers received as real ones, are assumed to be intended."
    ),
    harm="The received bytes are read as numbers of another type, which gives wrong values without an error.",
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
        "Each rank waits for a partner that is already waiting, until the timeout. NCCL ignores tags and matches "
        "messages in order."
    ),
    example=("if rank == 0:\n    dist.send(x, dst=1, tag=1)\nelse:\n    dist.recv(x, src=0, tag=2)"),
    remedy=(
        "Derive tags from one formula on both ends, such as the micro-batch number. If each rank makes the other's "
        "call later, the order is wrong instead: receive in the order of sending, or use isend and irecv."
    ),
)

P2P_UNMATCHED = Rule(
    "SC304",
    "p2p-unmatched",
    "Add the missing half, or remove the one that is left over.",
    means="A send has no receive, or a receive has no send, and the other rank can no longer make it.",
    harm=(
        "A receive waits for ever, and so does a send on Gloo, whatever its size; an isend that is never waited for "
        "is lost without an error (a warning)."
    ),
    example=("if rank == 0:\n    dist.recv(x, src=1)  # rank 1 never sends"),
    remedy=(
        "Count both ends: usually one of the loops runs once more than the other, or a group rank was given where a "
        "global rank is expected."
    ),
)

PAIR_RULES = (
    P2P_SIZE_MISMATCH,
    P2P_DTYPE_MISMATCH,
    P2P_TAG_MISMATCH,
    P2P_UNMATCHED,
    MEMBERSHIP_MISMATCH,
)
