"""The note by which the record of a dry run says that ``--steps`` ended its rank: nothing after it is the program's."""

from __future__ import annotations

STEPS_MADE = "steps_made"
"""The kind of that event."""
