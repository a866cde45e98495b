"""What a rank of a dry run notes in its record beside its calls, for the verdict to read: kinds of events."""

from __future__ import annotations

STEPS_MADE = "steps_made"
"""``--steps`` has ended the rank: nothing after it is the program's."""

THREAD = "thread"
"""Whose the calls after it are: ``number`` counts the program's threads, 0 is the main one."""

UNKNOWN_OBJECTS = "unknown_objects"
"""A list of the program's lacks the objects that another rank would have sent."""

SIZED_BY_OTHERS = "sized_by_others"
"""A call whose sizes rest on received values: which they are nobody knows."""
