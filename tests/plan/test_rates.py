"""What measured steps reach on a GPU, as a dry run's operators are priced with it."""

from __future__ import annotations

import pytest

from simcoll.errors import PricingError
from simcoll.plan.rates import Framework, Rates, reached
from simcoll.pricing.roofline import PEAKS, OperatorWork


@pytest.mark.parametrize("gpu", ["a100", "h100", "gb200", "v100", "h20"])
def test_operators_run_at_the_rates_of_a_plan(gpu: str) -> None:
    rates, planned = reached(gpu), Rates(gpu, "bf16", Framework("torchtitan"))
    flops = 10**15
    products, causal = (
        OperatorWork((("bfloat16", 0, flops, 0),)),
        OperatorWork((("bfloat16 causal attention", 0, flops, 0),)),
    )
    assert rates.seconds(products) == pytest.approx(flops / planned.half)
    assert rates.seconds(causal) == pytest.approx(flops / 2 / planned.attention)
    assert rates.seconds(OperatorWork((("", 0, 0, 10**12),))) == pytest.approx(1e12 / planned.memory)
    assert set(rates.flops) >= set(PEAKS[gpu].flops)
    assert all(rates.flops[dtype] < peak for dtype, peak in PEAKS[gpu].flops.items())


def test_a_gpu_without_a_peak_is_refused() -> None:
    with pytest.raises(PricingError, match="its peak is not known"):
        reached("h99")
