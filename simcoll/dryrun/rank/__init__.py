"""What one rank of a dry run pretends: GPUs, tensors without memory, peers that answer, files that others saved.

All of it runs inside the rank's own process, around the user's unchanged script. Choosing ranks, replaying them
together and the verdict live in ``simcoll.dryrun``.
"""
