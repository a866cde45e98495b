"""Rules about single ranks and the job as a whole: SC601 to SC801."""

from __future__ import annotations

from simcoll.verifier.findings.finding import Severity
from simcoll.verifier.findings.rule import Rule

INVALID_ARGUMENT = Rule(
    "SC601",
    "invalid-argument",
    "Correct the call at the named line; the exception's text says what is wrong with it.",
    means="One rank's own call is wrong, independent of the other ranks: torch.distributed or the backend refused it.",
    harm="The refused rank fails or goes on without the call, and the others wait for it.",
    example=("outs = [torch.empty(4) for _ in range(world_size - 1)]\ndist.all_gather(outs, x)  # one output too few"),
    remedy=(
        "Read the exception. If only some ranks are refused, compare how they build the arguments; if the backend "
        "cannot do the call at all, use another one."
    ),
)

RANK_FAILED = Rule(
    "SC701",
    "rank-failed",
    "Fix this failure first: what other ranks report after it is usually its consequence.",
    means="This is the first failure of the job: an uncaught exception, an exit code, or a signal.",
    harm="The other ranks lose their peer. Their errors come later, print more, and point at the wrong place.",
    example=('if rank == 1:\n    raise ValueError("bad record in shard 17")\ndist.all_reduce(x)'),
    remedy=(
        "Go to the named line. If it was a signal: SIGKILL often comes from the kernel's out-of-memory killer (see "
        "dmesg), SIGSEGV and SIGABRT come from native code."
    ),
)

RANK_EXITED_EARLY = Rule(
    "SC702",
    "rank-exited-early",
    "Let every rank make the same number of collective calls before it ends.",
    means=(
        "A rank ended normally while other ranks of its groups still had collectives to make with it. If most ranks "
        "of the group had ended, the ranks that went on are the culprits: they made a call too many."
    ),
    harm="The others' connections break, or they wait for the timeout.",
    example=("for batch in batches[: 10 if rank == 1 else 12]:\n    dist.all_reduce(batch)"),
    remedy="Uneven data is the usual cause: use a sampler that pads or drops, or DistributedDataParallel's join().",
)

STRAGGLER = Rule(
    "SC801",
    "straggler",
    "Look at what this rank does between its collectives: data loading, logging, a slower device.",
    means="One rank regularly comes last to its collectives. The report states the time that the other ranks lost.",
    harm="Every collective starts when the last rank comes, so the whole job is as slow as this rank.",
    example=(
        "for batch in batches:\n    if rank == 3:\n        time.sleep(0.1)  # a slow disk\n    dist.all_reduce(batch)"
    ),
    remedy="Compare the host, the device clocks and the input pipeline of that rank with another one.",
    severity=Severity.WARNING,
)

JOB_RULES = (INVALID_ARGUMENT, RANK_FAILED, RANK_EXITED_EARLY, STRAGGLER)
