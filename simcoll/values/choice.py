"""Chooses the calls whose values are checked: all, or as many as a budget of time allows.

Ranks choose alike without asking each other. Each position of a group has a number by which it is more or less
important, and a rank takes those above a bar. A rank that spends too much raises its bar: the positions that it takes
from then on are a part of the others', and a position is judged where all ranks took it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simcoll.errors import ConfigurationError
from simcoll.spec.value_laws import mixed

VALUES = ("off", "sample", "all")

_BUDGET = 0.01
_COUNTED = 0.75
"""The part of the budget that may be spent by the clock. The rest is for what no clock shows: caches that a digest has
emptied, and ranks that wait for one another.
"""

_FIRST_BAR, _HIGHEST_BAR = 4, 30
"""Logarithms: of 2^bar positions one is taken."""

_CALLS_BETWEEN_LOOKS = 32

_NEVER = 1 << 62

STEPS_WITHOUT = 64
"""Of so many consecutive steps a sample takes at least one, whatever it costs: what is read, a model's weights, a step
has read, and written, many times.
"""

_EVERY_CALL_UP_TO = 1 << 14
"""Beyond this number in its group a call is one of two that ``all`` takes, of four beyond twice the number, and so on:
the digests of a job that runs for weeks find room in its black boxes.
"""


def values_wanted(stated: str | None = None) -> str:
    """The values to check: as ``stated``, else by SIMCOLL_VALUES, else ``off``; raises ConfigurationError."""
    values = stated or os.environ.get("SIMCOLL_VALUES") or "off"
    if values not in VALUES:
        raise ConfigurationError(f"unknown values {values!r:.40}: expected one of {', '.join(VALUES)} (SIMCOLL_VALUES)")
    return values


def budget_wanted() -> float:
    """The share of the run that ``sample`` may take: SIMCOLL_VALUES_BUDGET of the environment, else one hundredth."""
    text = os.environ.get("SIMCOLL_VALUES_BUDGET", "").strip()
    if not text:
        return _BUDGET
    try:
        budget = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        budget = math.nan
    if not 0 < budget <= 1:
        raise ConfigurationError(f"SIMCOLL_VALUES_BUDGET={text!r:.40}: expected a share of the run, such as 0.01 or 1%")
    return budget


class Choice:
    """Chooses the calls of one rank by their number in their group."""

    def __init__(self, values: str, budget: float = _BUDGET, clock: Callable[[], float] = time.monotonic) -> None:
        self._all = values == "all"
        self._budget = budget * _COUNTED
        self._clock = clock
        self._began = clock()
        self._spent = self._judged = 0.0
        self._excess = 0.0
        self._asked = 0
        self._taken = 0
        self._bar = _FIRST_BAR
        self.stopped = False

    def stop(self) -> None:
        """Take nothing from now on."""
        self.stopped = True

    def takes(self, sequence: int, passed: int = 1, *, always: bool = False) -> bool:
        """True if the values of a group's collective of this number are to be checked; ``passed`` counts the numbers
        since the last one that was asked for, up to this one; ``always`` they are.
        """
        if self.stopped:
            return False
        if not self._all:
            before = self._asked // _CALLS_BETWEEN_LOOKS
            self._asked += passed
            if self._asked // _CALLS_BETWEEN_LOOKS != before:
                self._look()
            elif self._spent != self._judged:
                self._keep_to_budget()
        taken = always or self._is_above(sequence)
        self._taken += taken
        return taken

    def next(self, sequence: int) -> int:
        """The number after this one that is to be asked for next; those between are not taken."""
        if self.stopped:
            return _NEVER
        end = sequence + _CALLS_BETWEEN_LOOKS - self._asked % _CALLS_BETWEEN_LOOKS
        return next((one for one in range(sequence + 1, end) if self._is_above(one)), end)

    def _is_above(self, sequence: int) -> bool:
        """True if a number is important enough."""
        chance = mixed(sequence)
        late = chance >> (64 - (sequence // _EVERY_CALL_UP_TO).bit_length())
        return not late and (self._all or not chance >> (64 - self._bar))

    def leaves_out(self, sequence: int) -> bool:
        """True if some calls with about this number are not checked."""
        return not self._all or sequence >= _EVERY_CALL_UP_TO

    def takes_step(self, number: int, steps: int = 1, *, always: bool = False) -> bool:
        """True if a model is to be looked at in its step (window of so many steps) of this number; ``always`` it is."""
        if self.takes(number):
            return True
        if self.stopped:
            return False
        block, place = divmod(number, max(1, STEPS_WITHOUT // steps))
        taken = always or (not self._all and place == mixed(block) % max(1, STEPS_WITHOUT // steps))
        self._taken += taken
        return taken

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time that the block takes against the budget."""
        began = self._clock()
        try:
            yield
        finally:
            self.spent(self._clock() - began)

    def spent(self, seconds: float) -> None:
        """Note the time that was spent on what was taken."""
        self._spent += seconds

    def _look(self) -> None:
        """Raise the bar where the budget is spent, lower it where hardly a quarter is."""
        before, bar, self._excess = self._excess, self._bar, self._spent_of(self._clock() - self._began)
        if self._keep_to_budget() > 1:
            # What was spent too much at first is made up for with time.
            if self._bar == bar and self._excess >= before:
                self._bar = min(self._bar + 1, _HIGHEST_BAR)
        elif self._excess < 1 / 4:
            self._bar = max(self._bar - 1, 0)

    def _keep_to_budget(self) -> float:
        """Raise the bar to where numbers of the mean cost so far keep to the budget, if they did not; returns the part
        of it that was spent.
        """
        seconds, self._judged = self._clock() - self._began, self._spent
        excess = self._spent_of(seconds)
        if excess > 1:
            cost = excess * self._asked / max(1, self._taken)
            self._bar = max(self._bar, min(math.ceil(math.log2(cost)), _HIGHEST_BAR))
        return excess

    def _spent_of(self, seconds: float) -> float:
        """The part of the budget of so much time that was spent."""
        return self._spent / (self._budget * seconds) if seconds > 0 else 0.0
