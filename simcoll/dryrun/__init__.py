"""Dry runs: chooses the ranks to run, runs each in a process of its own, replays them together and judges them.

The fakes of a single rank (its GPUs, its process groups, its peers' data) live in ``simcoll.dryrun.rank``.
"""
