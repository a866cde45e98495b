"""Rules about who comes, and in which order: SC201 to SC204."""

from __future__ import annotations

from simcoll.verifier.findings.rule import Rule

MISSING_RANK = Rule(
    "SC201",
    "missing-rank",
    "Look where the missing rank is instead: it must make this call too, or the others must not.",
    means=(
        "Some ranks wait in a collective to which another rank of the group has not come in time, although it has not "
        "failed. If no launcher or monitor watched the job, the ranks' own records must show how long they waited; if "
        "all known ranks have come, and the call still does not end, no culprit is named."
    ),
    harm=(
        "The waiting ranks are stuck until the group's timeout, half an hour by default; then they fail, and their "
        "errors point at the network."
    ),
    example=("if rank == 1:\n    batch = batches.get()  # its loader has ended: nothing comes\ndist.all_reduce(loss)"),
    remedy=(
        "The report says where the missing rank is. If it skips the call, call it on every rank. If it is only slow "
        "(it evaluates, saves, downloads), raise the group's timeout, or make the other ranks wait explicitly. If its "
        "record just ends and there is no launcher's account of it, it may have been killed: see its host's log "
        "(dmesg)."
    ),
)

CALL_SKIPPED = Rule(
    "SC202",
    "call-skipped",
    "Make the call on every rank, or on none.",
    means=(
        "Compared with the other ranks' calls, one rank's sequence lacks a call (skipped) or has one too many "
        "(extra). The calls after it match again, shifted by one. Calls that look alike are distinguished by their "
        "source lines, if these leave no doubt; otherwise the report names the range of calls among which one is "
        "missing."
    ),
    harm=(
        "Every later call of that rank meets a different call of its peers: wrong data if the calls look alike, and a "
        "hang at the end when one call is left over."
    ),
    example=(
        "for loss, norm in steps:\n"
        "    if loss.isfinite():  # not so on rank 2, in one step\n"
        "        dist.all_reduce(loss)\n"
        "    dist.all_reduce(norm)"
    ),
    remedy=(
        "Look at the line where the other ranks made the call that this rank did not make. The usual cause is a "
        "continue, an early return or an exception handler around it."
    ),
)

ORDER_SWAPPED = Rule(
    "SC203",
    "order-swapped",
    "Issue the collectives of a group in one order on every rank.",
    means=(
        "Two ranks make the same calls on one group in a different order. If the calls look alike to the backend, "
        "only their source lines show the exchange; then it is a warning, and reported only if most ranks agree on "
        "the order."
    ),
    harm=(
        "Collectives carry no names: the first call of one rank meets the first call of the other. If the calls look "
        "alike, the tensors are exchanged silently."
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
        "Iterate over something that has the same order on every rank; sort keys. Do not make collectives of one "
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
    harm="None of them can ever go on, and waiting for the timeout does not help.",
    example=(
        "if rank == 0:\n"
        "    dist.all_reduce(x, group=a)\n"
        "    dist.all_reduce(x, group=b)\n"
        "else:\n"
        "    dist.all_reduce(x, group=b)\n"
        "    dist.all_reduce(x, group=a)"
    ),
    remedy=(
        "Use the groups in the same order on all ranks that share them. For exchanges between neighbours use "
        "batch_isend_irecv."
    ),
)

ORDER_RULES = (MISSING_RANK, CALL_SKIPPED, ORDER_SWAPPED, DEADLOCK_CYCLE)
