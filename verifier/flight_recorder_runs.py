"""Entries taken in as they come."""
from __future__ import annotations
from simcoll.verifier.flight_recorder_entries import Columns
from simcoll.verifier.flight_recorder_pickle import PickleStream


class Follower:
    def __init__(self, columns: Columns, data: bytes) -> None:
        self._columns = columns

    def take(self, entry: dict[object, object], stream: PickleStream) -> None:
        self._columns.take(entry)
