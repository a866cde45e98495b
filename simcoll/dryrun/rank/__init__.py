"""What one rank of a dry run replaces by fakes: GPUs, tensors without memory, peers that answer, saved files.

All of it runs inside the rank's own process, around the user's unchanged script. Choosing ranks, replaying them
together and the verdict live in ``simcoll.dryrun``.
"""
