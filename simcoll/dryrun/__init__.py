"""Dry runs: chooses the ranks to run, runs each in a process of its own, replays them together and judges them.

What a single rank pretends (its GPUs, its process groups, its peers' data) lives in ``simcoll.dryrun.rank``.
"""
