"""Comparison of the calls of a group: columns of calls, their alignment, their fields, their flows, their messages.

``simcoll.verifier.halts`` decides why a job stopped or failed.

Comparison works on columns. The ranks of a group that made the same calls at the same positions are one column with a
weight; words are added up only where digests leave something open; positions at which all ranks made the same calls as
at an earlier one are compared once and counted. So the work grows with the ranks and with what differs, and a record
costs a few bytes in a column. ``make bench-verify`` measures it.
"""
