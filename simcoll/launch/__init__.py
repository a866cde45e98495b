"""Starts the ranks of a job with torchrun's agent, watches them from outside, and ends the job when it cannot go on.

What the ranks record lives in ``simcoll.recorder``, what is made of the records in ``simcoll.verifier``.
"""
