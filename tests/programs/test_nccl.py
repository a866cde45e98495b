"""torch's ProcessGroupNCCL under the wrapper, on the test double of NCCL: what is silent, and what raises where.

A double is no GPU: this shows what simcoll does around torch's own code, and nothing of NCCL.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.double_ranks import needs_double, run

pytestmark = [pytest.mark.slow, needs_double]

STOCK = {"TORCH_DIST_USE_NCCL2": "0"}
"""From torch 2.15 on, ``nccl`` is another implementation unless this is set."""

MODES = ("check", "detail")
SETUPS = {
    "stock": STOCK,
    "stock, bound": {**STOCK, "SIMCOLL_TEST_BOUND": "1"},
    "nccl2": {},
    "nccl2, bound": {"SIMCOLL_TEST_BOUND": "1"},
}


@pytest.mark.parametrize("mode", ["record", "check", "detail"])
@pytest.mark.parametrize("setup", SETUPS)
def test_matching_calls_are_silent(tmp_path: Path, setup: str, mode: str) -> None:
    for found in run("nccl_calls.py", tmp_path, mode, {**SETUPS[setup], "SIMCOLL_TEST_CASE": "good"}):
        assert found.pop("works")
        assert {name: raised for name, raised in found.items() if raised} == {}


@pytest.mark.parametrize("setup", SETUPS)
def test_mismatches_raise_before_the_launch_and_leave_the_group_usable(tmp_path: Path, setup: str) -> None:
    for found in run("nccl_calls.py", tmp_path, "detail", {**SETUPS[setup], "SIMCOLL_TEST_CASE": "bad"}):
        assert {name: raised for name, raised in found.items() if raised != [name[:5], True]} == {}


def test_a_group_for_both_devices_is_proved_on_both(tmp_path: Path) -> None:
    variables = {"SIMCOLL_TEST_BACKEND": "cpu:gloo,cuda:nccl", "SIMCOLL_TEST_CASE": "bad"}
    for found in run("nccl_calls.py", tmp_path, "detail", variables):
        assert found.pop("on the CPU") == ["SC102"]
        assert {name: raised for name, raised in found.items() if raised != [name[:5], True]} == {}


@pytest.mark.parametrize("setup", ["stock", "nccl2"])
@pytest.mark.parametrize("mode", ["check", "detail"])
@pytest.mark.parametrize(("how", "code"), [("size", "SC301"), ("dtype", "SC302"), ("batch", "SC301")])
def test_both_ends_of_a_message_are_told(tmp_path: Path, setup: str, mode: str, how: str, code: str) -> None:
    found = run("nccl_calls.py", tmp_path, mode, {**SETUPS[setup], "SIMCOLL_TEST_CASE": how})
    assert [end["raised"] for end in found] == [[code], [code]]
    assert {said for end in found for said in MODES if f"(mode {said})" in end["text"]} == {mode}
    # In detail mode the end that came second has raised before its launch.
    late = sum("found in the background" in end["text"] for end in found)
    assert late == (2 if mode == "check" else 1)
