"""Records what a rank does: its calls, the line of the program that made them, groups, failures, dumps.

The files lie in ``simcoll.blackbox``; here is what goes into them. Other ranks are not asked here.

A running rank adds a copy of its box and its stacks when the program asks (:mod:`simcoll.recorder.dump`), and its
stacks when it gets SIGUSR1, which is answered in C and never taken from the program.
"""
