"""The constants that come with simcoll."""

from dataclasses import asdict

import pytest

from simcoll.estimator.calibration import calibration
from simcoll.estimator.nccl_tables import AMPERE, BLACKWELL, GENERATIONS, HOPPER


def test_every_generation_and_fabric_has_constants():
    constants = calibration()
    for index in set(GENERATIONS.values()):
        assert constants.generation(index).latency >= 1
    for name in ("ib", "roce", "efa", "tcpx", "tcpxo", None, "unheard-of"):
        assert constants.fabric(name, HOPPER).step > 0


def test_the_first_efa_is_slower_than_the_later():
    constants = calibration()
    assert constants.fabric("efa", AMPERE).step > constants.fabric("efa", BLACKWELL).step


@pytest.mark.parametrize("name", ["ib", "roce", "efa", "efa1", "tcpx", "tcpxo"])
def test_no_network_carries_more_than_its_line_rate(name):
    fabric = asdict(calibration().fabrics[name])
    assert 0 < fabric["bandwidth"] <= 1
    assert 0 < fabric["ring"] <= 1
    assert 0 <= fabric["overlap"] < 1
