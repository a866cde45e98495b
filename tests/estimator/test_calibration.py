"""The constants that come with simcoll."""

from dataclasses import asdict

import pytest

from simcoll.estimator.calibration import calibration
from simcoll.estimator.nccl_tables import GENERATIONS


def test_every_generation_and_fabric_has_constants():
    constants = calibration()
    for index in set(GENERATIONS.values()):
        assert constants.generation(index).latency >= 1
    for name in ("ib", "roce", "efa", "tcpx", "tcpxo", None, "unheard-of"):
        assert constants.fabric(name).step > 0


@pytest.mark.parametrize("name", ["ib", "roce", "efa", "tcpx", "tcpxo"])
def test_no_network_carries_more_than_its_line_rate(name):
    fabric = asdict(calibration().fabrics[name])
    assert 0 < fabric["bandwidth"] <= 1
    assert 0 < fabric["ring"] <= 1
    assert 0 <= fabric["overlap"] < 1
