"""Records a rank's activity: its calls, the line of the program that made them, groups, failures, dumps.

``simcoll.blackbox`` writes the files; this package decides what goes into them. It never asks other ranks.

A running rank adds a copy of its box and its stacks when the program asks (:mod:`simcoll.recorder.dump`), and its
stacks when it gets SIGUSR1, which is answered in C and never taken from the program.
"""
