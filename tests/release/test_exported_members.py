"""The public surface of the package: a name that comes or goes is a change for users, and belongs in the changelog."""

from __future__ import annotations

import subprocess
import sys

import pytest

import simcoll

PUBLIC = [
    "CollectiveMismatchError",
    "ConfigurationError",
    "Estimate",
    "MissingRankError",
    "SimcollError",
    "Topology",
    "TopologyError",
    "__version__",
    "cluster",
    "disable",
    "dump",
    "enable",
    "estimate",
    "explore",
    "fat_tree",
    "flat",
    "mark_steps",
    "plan",
    "preset",
    "price",
    "rail_optimised",
    "read_topology",
    "simulate",
    "step",
    "time_estimator",
    "wrap_process_group",
    "write_topology",
]
WITH_TORCH = {"disable", "enable", "time_estimator", "wrap_process_group"}
WITHOUT_TORCH = [name for name in PUBLIC if name not in WITH_TORCH]


def test_the_public_names_are_these() -> None:
    assert sorted(simcoll.__all__) == PUBLIC


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_a_name_resolves_without_torch(name: str) -> None:
    assert getattr(simcoll, name) is not None


@pytest.mark.slow
def test_every_name_resolves() -> None:
    pytest.importorskip("torch")
    assert all(getattr(simcoll, name) is not None for name in simcoll.__all__)


def test_dir_lists_the_public_names() -> None:
    assert set(PUBLIC) <= set(dir(simcoll))


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="verify_everything"):
        simcoll.verify_everything  # noqa: B018


@pytest.mark.slow
def test_a_star_import_works() -> None:
    pytest.importorskip("torch")
    program = "from simcoll import *; assert callable(enable)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_mismatch_is_a_runtime_error_as_the_one_of_torch_is() -> None:
    assert issubclass(simcoll.CollectiveMismatchError, RuntimeError)
