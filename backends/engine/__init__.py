"""Runs the ranks of a job as threads of one process: calls meet, are judged by the rules of real jobs, and complete.

Turns, meetings, mailboxes, deadlocks and virtual time live here. The interfaces for a rank's program, numpy arrays or
torch.distributed, live in the packages beside this one.
"""
