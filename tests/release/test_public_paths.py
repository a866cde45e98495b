"""What the documentation has users import works, under the paths of today and under those that modules once had."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from simcoll.public_paths import MOVED

WITHOUT_TORCH = [
    "simcoll.backends.engine.outcome.Outcome",
    "simcoll.backends.membership.Request",
    "simcoll.backends.object_calls.ObjectComm",
    "simcoll.backends.outcome.Outcome",
    "simcoll.backends.simulated.object_calls.ObjectComm",
    "simcoll.backends.simulated.requests.Request",
    "simcoll.backends.simulated.simulate",
    "simcoll.blackbox.read_black_box",
    "simcoll.calibration.Calibration",
    "simcoll.core.estimate.Bottleneck",
    "simcoll.errors.ConfigurationError",
    "simcoll.errors.TopologyError",
    "simcoll.estimate_value.Bottleneck",
    "simcoll.estimator.calibration.Calibration",
    "simcoll.estimator.estimate.estimate",
    "simcoll.estimator.flow.engine.price",
    "simcoll.estimator.measured.Measurement",
    "simcoll.exploring.Exploration",
    "simcoll.flow.price",
    "simcoll.measured.Measurement",
    "simcoll.pricing.Pricing",
    "simcoll.reports.json_report.json_schema",
    "simcoll.reports.rules.anchor",
    "simcoll.simulation.explore.Exploration",
    "simcoll.testing.Comm",
    "simcoll.testing.FindingsError",
    "simcoll.testing.UncheckedWarning",
    "simcoll.testing.run_ranks",
    "simcoll.testing.try_ranks",
    "simcoll.topology.Topology",
    "simcoll.topology.TopologyError",
    "simcoll.topology.derived",
    "simcoll.topology.flat",
    "simcoll.topology.graph.TopologyError",
    "simcoll.verifier.finding.Finding",
    "simcoll.verifier.finding.RankState",
    "simcoll.verifier.finding.Report",
    "simcoll.verifier.finding.Severity",
    "simcoll.verifier.finding.Side",
    "simcoll.verifier.finding.Verdict",
    "simcoll.verifier.findings.finding.Finding",
    "simcoll.verifier.flight_recorder.read_dump",
    "simcoll.verifier.flight_recorder.traces_of",
    "simcoll.verifier.rules.RULES",
]
WITH_TORCH = [
    "simcoll.backends.threaded.create_process_group",
    "simcoll.estimating.TimeEstimator",
    "simcoll.estimator.time_estimator.TimeEstimator",
    "simcoll.rank_threads.run_threaded",
]


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("path", WITHOUT_TORCH)
def test_a_documented_path_works(path: str) -> None:
    assert found(path) is not None


@pytest.mark.slow
def test_those_that_need_torch_work() -> None:
    pytest.importorskip("torch")
    assert all(found(path) is not None for path in WITH_TORCH)


@pytest.mark.parametrize("former", sorted(set(MOVED) - {"simcoll.estimating", "simcoll.rank_threads"}))
def test_a_former_name_is_the_very_module(former: str) -> None:
    assert import_module(former) is import_module(MOVED[former])
    assert import_module(former).__name__ == MOVED[former]


def test_a_former_name_is_no_module_of_its_own() -> None:
    """In a fresh process, as `import simcoll.flow` and as `from simcoll.flow import price`."""
    program = (
        "import simcoll.flow, sys; from simcoll.flow import price; from simcoll.pricing import Pricing\n"
        "from simcoll.estimator.flow import engine\n"
        "assert simcoll.flow is engine and price is engine.price and simcoll.flow.__spec__.name == engine.__name__"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_name_that_never_was_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"simcoll\.no_such_module"):
        import_module("simcoll.no_such_module")
