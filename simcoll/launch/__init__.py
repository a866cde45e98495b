"""Starts the ranks of a job with torchrun's agent, watches them from outside, and ends the job when it cannot go on.

``simcoll.recorder`` writes the ranks' records, ``simcoll.verifier`` judges them.

To end a job the launcher is asked first, then its ranks are killed: torch's agent alone waits long for a process that
does not react. ``docs/run.md`` describes the evidence by which the monitor decides that a job cannot go on.
"""
