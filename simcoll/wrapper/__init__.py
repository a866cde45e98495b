"""The process group that is put underneath torch.distributed: hooks, dispatch, the pipeline of a call, Work objects.

It calls ``simcoll.recorder`` to write a call down and ``simcoll.proof`` to compare it with other ranks.
"""
