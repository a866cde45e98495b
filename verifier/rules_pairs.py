"""Rules about send and receive, and about groups: SC301 to SC401."""

from __future__ import annotations

from simcoll.verifier.rule import Rule

PAIR_RULES = (
    Rule(
        "SC301",
        "p2p-size-mismatch",
        "Give send and recv tensors of one size; send the size first if it varies.",
        means="A message has another number of bytes than the buffer that receives it.",
        harm="Gloo aborts the process or fills a part of the buffer silently; NCCL hangs or truncates.",
        example=("if rank == 0:\n    dist.send(torch.ones(10), dst=1)\nelse:\n    dist.recv(torch.empty(8), src=0)"),
        remedy="Agree on the shape beforehand, or send it ahead of the data.",
    ),
    Rule(
        "SC302",
        "p2p-dtype-mismatch",
        "Convert to one dtype before the send, and allocate the receive buffer with it.",
        means="Sender and receiver of a message name different element types.",
        harm="Bytes arrive and are read as numbers of another type: silent nonsense.",
        example=(
            "if rank == 0:\n"
            "    dist.send(torch.ones(8, dtype=torch.int32), dst=1)\n"
            "else:\n"
            "    dist.recv(torch.empty(8), src=0)"
        ),
        remedy="Look for autocast on one pipeline stage only, and for a default dtype that was changed.",
    ),
    Rule(
        "SC303",
        "p2p-tag-mismatch",
        "Use the same tag on both ends.",
        means="A send and a receive between two ranks would match, but for their tags.",
        harm=(
            "Both wait for a partner that is already there, until the timeout. NCCL ignores tags and pairs them in "
            "order."
        ),
        example=("if rank == 0:\n    dist.send(x, dst=1, tag=1)\nelse:\n    dist.recv(x, src=0, tag=2)"),
        remedy="Derive tags from one formula on both ends, such as the micro-batch number.",
    ),
    Rule(
        "SC304",
        "p2p-unmatched",
        "Add the missing half, or remove the one that is left over.",
        means="A send has no receive, or a receive has no send.",
        harm="A receive waits for ever. A small send may seem to succeed and then meet the next receive instead.",
        example=("if rank == 0:\n    dist.recv(x, src=1)  # rank 1 never sends"),
        remedy="Count both ends in the report: one of the loops usually runs once more than the other.",
    ),
    Rule(
        "SC401",
        "group-membership-mismatch",
        "Call new_group on every rank, with the same ranks, in the same order.",
        means="Ranks created a group with other members, created groups in another order, or some did not create it.",
        harm=(
            "Names and connections are derived from the order of creation: the ranks talk past each other until a "
            "timeout."
        ),
        example=("if rank < 2:\n    pair = dist.new_group([0, 1])"),
        remedy=(
            "Create all groups on all ranks in one order, also those of which a rank is no member; or use "
            "use_local_synchronization=True, which asks the members only."
        ),
    ),
)
"""SC301 to SC401."""
