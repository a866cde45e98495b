"""Rules about who comes, and in which order: SC201 to SC204."""

from __future__ import annotations

from simcoll.verifier.findings.rule import Rule

MISSING_RANK = Rule(
    "SC201",
    "missing-rank",
    "Look where the missing rank is instead: it must make this call too, or the others must not.",
    means=(
        "Some ranks wait in a collective to which another rank of the group has not come in time, although it has not "
        "failed. Where nobody watched the job, the ranks' own records must show for how long; if all that are known "
        "have come, and the call still does not end, no culprit is named."
    ),
    harm=(
        "The waiting ranks are stuck until the group's timeout, half an hour by default; then they fail, and blame "
        "the network."
    ),
    example=("if rank == 1:\n    batch = batches.get()  # its loader has ended: nothing comes\ndist.all_reduce(loss)"),
    remedy=(
        "The report says where the missing rank is. If it skips the call, call it on every rank. If it is only slow "
        "(it evaluates, saves, downloads), raise the group's timeout or let the others wait on purpose. If "
        "its record just ends and no launcher told of it, it may have been killed: see its host's log (dmesg)."
    ),
)

CALL_SKIPPED = Rule(
    "SC202",
    "call-skipped",
    "Make the call on every rank, or on none.",
    means=(
        "Aligned with the other ranks' calls, one rank's sequence lacks a call (skipped) or has one too many "
        "(extra). What follows still matches, shifted by one. Calls that look alike are told apart by the lines that "
        "made them, where these leave no doubt; otherwise the report says among which calls one is lacking."
    ),
    harm=(
        "Every later call of that rank meets another call of its peers: wrong data where the calls look alike, a "
        "hang at the end where one is left over."
    ),
    example=(
        "for loss, norm in steps:\n"
        "    if loss.isfinite():  # not so on rank 2, in one step\n"
        "        dist.all_reduce(loss)\n"
        "    dist.all_reduce(norm)"
    ),
    remedy=(
        "Look at the line where the other ranks made the call that this one did not. A continue, an early return or "
        "an exception handler around it is the usual cause."
    ),
)

ORDER_SWAPPED = Rule(
    "SC203",
    "order-swapped",
    "Issue the collectives of a group in one order on every rank.",
    means=(
        "Two ranks make the same calls on one group in another order. Where the calls look alike to the backend, only "
        "their source lines show the exchange; then it is a warning, and given only if most ranks agree on the order."
    ),
    harm=(
        "Collectives have no names on the wire: the first call of one rank meets the first call of the other. Where "
        "the calls look alike, the tensors are exchanged silently."
    ),
    example=(
        "def add_up():\n"
        "    dist.all_reduce(loss)\n"
        "\n"
        "\n"
        "def count():\n"
        "    dist.all_reduce(samples)\n"
        "\n"
        "\n"
        "for step in [count, add_up] if rank == 2 else [add_up, count]:\n"
        "    step()"
    ),
    remedy=(
        "Iterate over something that is ordered alike on every rank; sort keys. Do not issue collectives of one "
        "group from several threads."
    ),
)

DEADLOCK_CYCLE = Rule(
    "SC204",
    "deadlock-cycle",
    "Break the cycle: order the calls alike on every rank, or make one of them asynchronous.",
    means=(
        "Each rank of a cycle waits for the next one, in a collective of some group or in a send or receive, and the "
        "last waits for the first."
    ),
    harm="None of them can ever go on. Waiting for the timeout does not help.",
    example=(
        "if rank == 0:\n"
        "    dist.all_reduce(x, group=a)\n"
        "    dist.all_reduce(x, group=b)\n"
        "else:\n"
        "    dist.all_reduce(x, group=b)\n"
        "    dist.all_reduce(x, group=a)"
    ),
    remedy=(
        "Use the groups in one order on all ranks that share them. For exchanges between neighbours use "
        "batch_isend_irecv."
    ),
)

ORDER_RULES = (MISSING_RANK, CALL_SKIPPED, ORDER_SWAPPED, DEADLOCK_CYCLE)
