"""Kinds of the events that a rank of a dry run writes into its black box for the verdict, beside its calls."""

from __future__ import annotations

STEPS_MADE = "steps_made"
"""``--steps`` has ended the rank: the program itself would have gone on."""

ENDLESS = "endless"
"""The program has gone round on guessed values for long, and was ended: ranks are to run again with known values."""

OTHER_JOB = "other_job"
"""The script has started a job of another ``size`` at this line, after that of the dry run: it was left out."""

THREAD = "thread"
"""The calls that follow are of the program's thread with this ``number``; 0 is the main thread."""

UNKNOWN_OBJECTS = "unknown_objects"
"""The program goes on without objects that another rank would have sent, or without a key that it would have set.

``waited`` is true where the program waited for the key, and the dry run took it to have come.
"""

SIZED_BY_OTHERS = "sized_by_others"
"""The sizes of this call depend on received values, so that they are unknown."""

TAINTED_READ = "received_value"
"""The program has read a value that a dry run can only guess."""

BRANCH = "way"
"""The branch that the program took at a line that read such a value (``taken``; absent where that is not known)."""
