"""Runs the ranks of a job as threads of one process: calls meet, are judged by the rules of real jobs, and complete.

Turns, meetings, mailboxes, deadlocks and virtual time live here. The interfaces for a rank's program, numpy arrays or
torch.distributed, live in the packages beside this one.

A call is a ticket. The last rank that comes to a collective settles it for all ranks, the second end of a message for
both::

    Comm (numpy), simulated/requests.py          a torch process group, threaded/process_group.py
                      |                                             |
                      +---------- World.post(ticket) ---------------+
                                        |
              meetings, mailbox -> settling: compare, refuse, compute
                                        |
    Turns: one rank runs at a time, a schedule decides; or FreeThreads: the system decides

With turns a run is a function of its program and its schedule. Where no rank is ready and no thread runs, the ranks are
stuck, which needs no timeout to be known. Records go to a black box in memory with virtual clocks, and the verifier
judges them as those of a real job; :mod:`simcoll.backends.engine.outcome` stands for the launcher's account.
"""
