"""What the command and its monitor see of the other nodes, once the launchers have met: head or member."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from simcoll.blackbox.accounts import LaunchAccount
from simcoll.core.trace import Stall
from simcoll.launch.nodes.head import Head, Others
from simcoll.launch.nodes.meeting import Door, Meeting, as_variable, mark_of, opened, read_meeting, removed
from simcoll.launch.nodes.member import Answer, Member, OwnNode
from simcoll.launch.nodes.wire import lost_seconds
from simcoll.verifier.causes.facts import LostNode


class Exchange:
    """The part of one node in what the nodes of a job tell each other.

    ``begun_ns``: when it began, by the clock of the folder's file system. Ranks start later, on all nodes: an account
    that was last written before is that of another run.
    """

    def __init__(self, folder: Path, door: Door, listening: socket.socket, begun_ns: int, lost_seconds: float) -> None:
        self.begun_ns = begun_ns
        self._lost_seconds = lost_seconds
        self._folder = folder
        self._door = door
        self._listening = listening
        self._meeting: Meeting | None = None
        self._own: OwnNode | None = None
        self._role: Head | Member | None = None

    @classmethod
    def begun(cls, folder: Path) -> Exchange | None:
        """Open this node's door; None where that cannot be done, and each node reports on its own ranks.

        Raises ConfigurationError where the environment does not say when a node is lost.
        """
        seconds = lost_seconds()
        made = opened(folder)
        return None if made is None else cls(folder, *made, seconds)

    def variables(self) -> dict[str, str]:
        """The part of the launcher's environment by which it finds the other nodes' launchers."""
        return as_variable(self._door)

    def watch(self, account: Path, since_ns: int, stall: Callable[[], Stall]) -> None:
        """Tell which ranks are this node's: those of the launcher's account; ``stall`` tells how they stand."""
        self._own = OwnNode(self._folder, account, since_ns, stall)

    # What the monitor asks.

    def progress(self, moves: int) -> int:
        """Tell how often this node's ranks have moved; how often the others' have, as far as is known."""
        self._meet()
        if self._own is not None:
            self._own.moves, self._own.looks = moves, self._own.looks + 1
        if isinstance(self._role, Head):
            return self._role.progress(moves)
        return self._role.moves if self._role is not None else 0

    @property
    def led(self) -> bool:
        """True while node 0 judges this node's ranks with its own."""
        return isinstance(self._role, Member) and self._role.led

    @property
    def ended(self) -> bool:
        """True if node 0 has this node end its part of a job that stands."""
        return isinstance(self._role, Member) and self._role.ended

    def standing(self) -> Others | None:
        """At node 0 the records of all others, as they are now, None until they have come; elsewhere nothing."""
        return self._role.standing() if isinstance(self._role, Head) else Others()

    def forget(self) -> None:
        """What :meth:`standing` gave is out of date."""
        if isinstance(self._role, Head):
            self._role.forget()

    def still_stand(self) -> bool:
        """True if no other node has moved since its records were taken."""
        return self._role.still_stand() if isinstance(self._role, Head) else True

    def end(self) -> None:
        """Have all nodes end the job, which stands."""
        if isinstance(self._role, Head):
            self._role.end()

    # What the command asks when its ranks have ended.

    @property
    def apart(self) -> bool:
        """True for a node whose folder is not that of node 0; others may share it, which are not awaited."""
        return isinstance(self._role, Member)

    def hand_over(self) -> Answer | None:
        """On another node than node 0: hand it this node's records; what its report says, None where it is not told."""
        self._meet()  # the job may have ended before the monitor has looked
        return self._role.finish() if isinstance(self._role, Member) else None

    def unreachable(self) -> str:
        """Why this node reports on its own ranks; nothing where there is no reason to be told."""
        if not isinstance(self._role, Member) or self._role.kept:
            return ""
        meeting = self._role.meeting
        where = f"{meeting.address} port {meeting.door.port}"
        return f"node 0 did not answer at {where}: this report is on the ranks that record in {self._folder} alone"

    def take_over(self, look: Callable[[], bool], seconds: float, known: Callable[[], Iterable[int]]) -> list[str]:
        """At node 0: wait for the others' records, put them beside the own; what is to be said of those that lack."""
        self._meet()
        return self._role.finish(look, seconds, known) if isinstance(self._role, Head) else []

    def lost(self) -> tuple[LostNode, ...]:
        """The nodes that this one talked to and lost: evidence of who should act."""
        return () if self._role is None else self._role.lost()

    def launches(self) -> list[LaunchAccount]:
        """At node 0 the accounts of the others, as last heard."""
        return self._role.launches() if isinstance(self._role, Head) else []

    def conclude(self, code: int) -> None:
        """At node 0: tell the others what the report says."""
        if isinstance(self._role, Head):
            self._role.conclude(code, f"{self._folder} on {socket.gethostname()}")

    def close(self) -> None:
        """End all of it, and remove this node's mark."""
        if self._role is not None:
            self._role.close()
        self._listening.close()
        removed(self._folder, self._door)

    def _meet(self) -> None:
        """Take the part that the launchers have found out; another one after a rendezvous of other nodes."""
        meeting = read_meeting(self._folder, self._door)
        if meeting is None or meeting == self._meeting or self._own is None:
            return
        self._meeting = meeting
        if self._role is not None:
            self._role.close()
            self._role = None
        if meeting.nodes < 2 or meeting.shared:
            return
        if meeting.node == 0:
            drafts = mark_of(self._folder, self._door.mark).with_suffix(".drafts")
            self._role = Head(
                self._listening, self._door.secret, self._own.account, drafts, meeting.nodes, self._lost_seconds
            )
        else:
            self._role = Member(meeting, self._own, self._lost_seconds)
