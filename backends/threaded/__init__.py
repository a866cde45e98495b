"""Runs unchanged torch.distributed programs with a thread for each rank.

It has the process group on the engine, and a copy for each rank of the state that a process has once: environment,
stores, random state, c10d's tables.
"""
