"""Starts the ranks of a job with torchrun's agent, watches them from outside, and ends the job when it cannot go on.

What the ranks record lives in ``simcoll.recorder``, what is made of the records in ``simcoll.verifier``.

To end a job the launcher is asked first, then its ranks are killed: torch's agent alone waits long for a process that
does not react. ``docs/run.md`` says how the monitor knows that a job cannot go on.
"""
