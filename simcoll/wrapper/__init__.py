"""The process group that is put underneath torch.distributed: hooks, dispatch, the pipeline of a call, Work objects.

It calls ``simcoll.recorder`` to write a call down and ``simcoll.proof`` to compare it with other ranks.

A synchronous call is proved in the call and raises there. An asynchronous call returns at once; a queue for each group
proves, launches and completes calls first in, first out, and ``wait()`` raises. Two groups that two ranks use
asynchronously in opposite orders therefore work, as they do without simcoll.
"""
