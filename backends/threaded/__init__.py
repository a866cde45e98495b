"""Runs unchanged torch.distributed programs with a thread for each rank.

The process group over the engine lives here, and what torch keeps once a process and each rank needs for itself:
environment, stores, random state, c10d's tables.
"""
