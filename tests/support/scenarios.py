"""Scenarios from texts, as tests write them."""

from __future__ import annotations

from simcoll.core.toml import parse_toml
from simcoll.simulation.reader import scenario_of
from simcoll.simulation.scenario import Scenario


def parse_scenario(text: str, name: str = "scenario.toml") -> Scenario:
    """A scenario from text; raises TomlError."""
    return scenario_of(parse_toml(name, text))
