"""Whether the calls of a group agree: columns of calls, their alignment, their fields, their flows, their messages.

Why a job stood or failed is decided in ``simcoll.verifier.halts``.
"""
