"""The black box: what one rank did, in a file that survives the rank. ``docs/black-box.md`` describes the file.

:class:`BlackBoxWriter` writes one, :func:`read_black_box` reads one. Reading never trusts: nothing is unpickled or
evaluated, memory is bounded by the format's own limits, and whatever is damaged is left out and named.
"""

from simcoll.blackbox.box import NO_TICKET, Slot
from simcoll.blackbox.reader import BlackBox, read_black_box
from simcoll.blackbox.writer import BlackBoxError, BlackBoxWriter
from simcoll.errors import UnreadableError

__all__ = ["NO_TICKET", "BlackBox", "BlackBoxError", "BlackBoxWriter", "Slot", "UnreadableError", "read_black_box"]
