"""Dry runs: chooses the ranks to run, runs each in a process of its own, replays them together and judges them.

The fakes of a single rank (its GPUs, its process groups, its peers' data) live in ``simcoll.dryrun.rank``.

A rank that runs alone never waits, so its record has all of its program. The programs are then replayed together: each
rank goes on until it waits for a collective, a message or a group whose other ranks have not come. Where no rank can go
on, the real run would stop; every record is cut there and judged as that of a real run that was given up. A
disagreement of whole programs on a call that the real run reaches precedes its consequences, and a message whose other
end is in no program is no deadlock. Nothing is assumed of ranks that did not run, that were ended for time,
memory or ``--steps``, or that failed on a value that a dry run can only guess: they count as come.

Received values are guesses, so ranks may take branches that the real run would not take. Each rank notes the outcome
of the reads that decide, and the small inputs of its calls. If a finding may follow from different branches, or from
received sizes, the ranks run again and receive the inputs that all of them gave. Where they still differ, later calls
are judged only among ranks that took the same branches. This replay knows order and no time; the replay of a
priced job (:mod:`simcoll.pricing.replay`) knows time, never judges, and lets go of a rank that cannot go on.

Between a rank and the process pool stands a subreaper, to which the kernel hands the rank's orphans: when the rank has
ended, or SIGTERM asks for it, or the process above dies, it kills until it has no children left. So daemons end too,
which no process group or session would find. Several processes that share a dry run meet in a c10d store: the first
publishes the ranks, a counter gives them out one by one, so that a faster host takes more, and records go through the
store a few ranks ahead of their reader. Each process has a *pulse*, a child that counts up a key once a second and says
in the store that its parent has died: a process that only waits for a key would wait for ever. The first process's
pulse holds the store where the launcher has none, and stays three seconds for its last message.
"""
