"""Runs the ranks of a job as threads of one process: calls meet, are judged by the rules of real jobs, and complete.

Turns, meetings, mailboxes, deadlocks and virtual time live here. What a rank's program sees of it, numpy arrays or
torch.distributed, lives in the packages beside this one.
"""
