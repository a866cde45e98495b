"""The black box: the calls of one rank, in a file that survives the rank. ``docs/black-box.md`` describes the file.

:class:`BlackBoxWriter` writes one, :func:`read_black_box` reads one. Reading never trusts: nothing is unpickled or
evaluated, memory is bounded by the format's own limits, and whatever is damaged is left out and named.

The other files of a job are here as well: ``gather`` finds and reads the records of one run, ``accounts`` what its
launchers and monitors left beside them, ``stacks`` the stacks of ranks. ``simcoll.verifier`` decides what they mean.

A box is written as the rank runs, into a mapped file: its content survives a kill. Each slot carries a seal, so that
a slot damaged by the disk never passes for a call. Thousands of files are read by as many fresh processes as
there are cores, each within 2 GiB of address space; few small files are read in place. Results come back through a
pipe as columns; values that ranks have in common (groups, calls, lines) become one object each.
"""

from simcoll.blackbox.box import NO_TICKET, Slot
from simcoll.blackbox.reader import BlackBox, read_black_box
from simcoll.blackbox.writer import BlackBoxError, BlackBoxWriter
from simcoll.errors import UnreadableError

__all__ = ["NO_TICKET", "BlackBox", "BlackBoxError", "BlackBoxWriter", "Slot", "UnreadableError", "read_black_box"]
