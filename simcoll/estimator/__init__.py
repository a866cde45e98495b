"""The price of one collective on a topology, in closed form: NCCL's tuner, its cost tables, fitted constants.

The flow engine, which routes an algorithm's transfers over the links, lives in the sub-package ``flow``. The price of a
whole job lives in ``simcoll.pricing``.
"""
