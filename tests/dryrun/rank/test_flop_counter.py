"""What a rank computes is counted, with memory and without; what somebody waits for in C++ is waited for at its use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from simcoll.core.patches import Patches
from simcoll.dryrun.rank import flop_counter
from simcoll.dryrun.rank.flop_counter import WorkCounter
from simcoll.pricing.device_ops import DeviceOrder, Item


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Item]:
    """What is written; the process keeps its optimisers."""
    monkeypatch.setattr(flop_counter, "register_optimizer_step_post_hook", lambda hook: None)
    return []


@pytest.fixture
def patches() -> Iterator[Patches]:
    """Streams and futures, which are restored after the test."""
    with Patches() as replaced:
        yield replaced


def counted(items: list[Item]) -> dict[str, tuple[int, int]]:
    """FLOPs and bytes by dtype."""
    found: dict[str, tuple[int, int]] = {}
    for kind, rows in items:
        assert kind == "c"
        for dtype, _, flops, size in rows:  # type: ignore[attr-defined]
            before = found.get(dtype, (0, 0))
            found[dtype] = before[0] + flops, before[1] + size
    return found


@pytest.mark.parametrize("fake", [False, True])
def test_products_count_by_their_formula_and_the_rest_by_bytes(
    written: list[Item], patches: Patches, fake: bool
) -> None:
    one, other = torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(16, 4, dtype=torch.bfloat16)
    if fake:
        mode = FakeTensorMode()
        one, other = mode.from_tensor(one), mode.from_tensor(other)
    with WorkCounter(patches, DeviceOrder(written.extend)):
        product = one @ other
        product.t()
        product + product
    product_bytes = 2 * (8 * 16 + 16 * 4 + 8 * 4)
    assert counted(written) == {"bfloat16": (2 * 8 * 16 * 4, product_bytes), "": (0, 2 * 3 * 8 * 4)}


@pytest.mark.parametrize(("causal", "kind"), [(True, "causal attention"), (False, "attention")])
def test_attention_is_told_from_products(written: list[Item], patches: Patches, causal: bool, kind: str) -> None:
    heads = torch.ones(1, 2, 8, 16, dtype=torch.bfloat16, requires_grad=True)
    with WorkCounter(patches, DeviceOrder(written.extend)):
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=causal).sum().backward()
    forward = 2 * 2 * 2 * 8 * 8 * 16
    found = counted(written)
    assert {dtype: flops for dtype, (flops, _) in found.items() if flops} == {f"bfloat16 {kind}": 3.5 * forward}


def test_a_backward_pass_counts_too(written: list[Item], patches: Patches) -> None:
    weight = torch.ones(16, 4, requires_grad=True)
    with WorkCounter(patches, DeviceOrder(written.extend)):
        (torch.ones(8, 16) @ weight).sum().backward()
    assert counted(written)["float32"][0] == 2 * 2 * 8 * 16 * 4


def test_float32_is_tf32_where_the_program_allows_it(
    written: list[Item], patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    with WorkCounter(patches, DeviceOrder(written.extend)):
        torch.ones(8, 16) @ torch.ones(16, 4)
    assert counted(written)["tf32"][0] == 2 * 8 * 16 * 4


def test_attention_of_a_cpu_counts_as_that_of_a_gpu(written: list[Item], patches: Patches) -> None:
    query = torch.ones(1, 2, 32, 8)
    with WorkCounter(patches, DeviceOrder(written.extend)):
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert sum(flops for flops, _ in counted(written).values()) == 2 * 2 * 2 * 32 * 32 * 8


def test_a_formula_that_does_not_know_its_arguments_stops_nothing(
    written: list[Item], patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **kwargs: object) -> int:
        raise AssertionError("unknown")

    monkeypatch.setitem(flop_counter._FORMULAS, torch.ops.aten.mm, fails)
    with WorkCounter(patches, DeviceOrder(written.extend)):
        torch.ones(8, 16) @ torch.ones(16, 4)
    assert counted(written)[""][0] == 0


def test_a_result_is_waited_for_where_it_is_used(written: list[Item], patches: Patches) -> None:
    bucket, other = torch.ones(4), torch.ones(4)
    with WorkCounter(patches, DeviceOrder(written.extend)) as counter:
        counter.streams.launch(("0", 1, 0), waits=False)
        counter._follow([bucket], frozenset({("0", 1, 0)}))
        other + other
        bucket.view(2, 2)
        bucket + other
    assert [item[0] for item in written if item[0] != "c"] == ["l", "w"]
    kinds = [item[0] for item in written]
    assert kinds.index("w") == kinds.index("l") + 2
