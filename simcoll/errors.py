"""The exceptions that concern more than one package, and the exit codes of every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from simcoll.verifier.findings.finding import Finding


OK: Final = 0
"""Nothing is wrong."""

CANNOT_START: Final = 1
"""The program could not start, or failed before any group existed."""

BAD_INPUT: Final = 2
"""Wrong usage, or input that cannot be read."""

FINDINGS: Final = 3
"""There are findings of severity error."""

STANDING: Final = 4
"""``simcoll status``: the job stands."""


class SimcollError(Exception):
    """A simcoll command or call cannot go on: what was given, what was expected, what to do."""


class ConfigurationError(SimcollError, ValueError):
    """A mode, a path or an environment variable that simcoll cannot use."""


class UsageError(SimcollError, ValueError):
    """An argument of a command that cannot be understood, or contradicts the others."""


class TopologyError(SimcollError, ValueError):
    """A graph, a file or an argument that describes no cluster: what was given, what was expected, what to do."""


class PricingError(SimcollError, ValueError):
    """A job that cannot be priced as asked: what was given, what was expected, what to do."""


class ExecutorError(SimcollError):
    """Work cannot be spread (``--executor``): what was given, what went wrong; ``code`` is the exit code."""

    def __init__(self, message: str, code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.code = code


class UnreadableError(ValueError):
    """A file is no record (black box, Flight Recorder dump) that this version reads: what was found, what to give."""


class StdoutError(SimcollError):
    """A command's output does not arrive: the disk behind stdout is full, say."""


class CollectiveMismatchError(RuntimeError):
    """The ranks of a group disagree about a collective, found before it ran; raised on every rank of the group.

    ``findings`` holds the disagreements, with every rank's side and source line.
    """

    def __init__(self, message: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class MissingRankError(CollectiveMismatchError):
    """Some ranks did not come to a collective within its timeout: ``absent``, as global ranks."""

    def __init__(self, message: str, absent: tuple[int, ...] = (), waited_ms: int = 0) -> None:
        super().__init__(message)
        self.absent = absent
        self.waited_ms = waited_ms
