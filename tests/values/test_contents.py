"""Digests of many tensors: one changed element of any dtype and layout changes that of its tensor alone."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch")
import torch

from simcoll.values.contents import Hasher, HostCopy, first_elements, is_plain
from simcoll.values.folding import folded, part_begins

SEED = 5


def tensors() -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(SEED)

    def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=numbers).to(dtype)

    return [
        torch.nn.Parameter(drawn(200, 300)),
        drawn(9),
        torch.tensor(3),
        torch.empty(0),
        torch.ones(3, dtype=torch.bool),
        drawn(100_003, dtype=torch.bfloat16)[1:],
        drawn(70, 300).t(),
        drawn(3, dtype=torch.complex128),
        drawn(40_000).to(torch.float8_e4m3fn),
        drawn(4, 3, 5, 5).to(memory_format=torch.channels_last),
        drawn(5_001, dtype=torch.complex128),
        drawn(16, 3)[:, 0],
        drawn(20_000)[::2],
    ]


def test_one_changed_element_changes_the_digest_of_its_tensor() -> None:
    hasher, mine = Hasher(), tensors()
    before = hasher.digests(mine)
    whole, parts = folded(before.numpy())
    for place, tensor in enumerate(mine):
        for index in {0, tensor.numel() // 2, tensor.numel() - 1} if tensor.numel() else ():
            row = tensor.detach().reshape(-1).contiguous()
            bits = row.view(torch.uint8).reshape(row.shape[0], -1).clone()
            bits[index, 0] ^= 1
            changed = [*mine]
            changed[place] = bits.reshape(-1).view(tensor.dtype).reshape(tensor.shape)
            after = hasher.digests(changed)
            assert (after != before).nonzero().flatten().tolist() == [place]
            other, also = folded(after.numpy())
            assert other != whole
            assert [at for at in range(len(mine)) if parts[4 * at :][:4] != also[4 * at :][:4]] == [place]


def test_tensors_that_are_views_of_others_have_the_digests_of_their_copies() -> None:
    complex_ones = torch.randn(6_000, dtype=torch.complex64)
    views = [complex_ones.conj(), torch.ones(3).expand(20_000, 3), torch.randn(9).expand(2, 9), complex_ones.imag]
    assert torch.equal(Hasher().digests(views), Hasher().digests([view.clone().contiguous() for view in views]))


def test_tensors_without_elements_have_digests() -> None:
    assert Hasher().digests([torch.empty(0), torch.empty(0, 3)]).tolist() == [0, 0]


def test_a_tensor_whose_memory_is_not_all_there_is_not_plain() -> None:
    freed, cut = torch.ones(8), torch.ones(4, 4)[1:]
    freed.untyped_storage().resize_(0)
    cut.untyped_storage().resize_(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert not any(map(is_plain, (freed, cut, nested)))
    assert all(map(is_plain, (torch.empty(0), torch.ones(3).expand(4, 3), torch.ones(4, 4)[1:, 2])))
    seen: list[bool] = []

    def total(x: torch.Tensor) -> torch.Tensor:
        seen.append(is_plain(x))
        return x.sum()

    torch.func.grad(total)(torch.ones(3))
    assert seen == [False]


def test_a_digest_is_that_of_the_values_alone() -> None:
    mine = tensors()
    copies = [tensor.detach().clone(memory_format=torch.preserve_format) for tensor in mine]
    assert torch.equal(Hasher().digests(mine), Hasher().digests(copies))
    assert not torch.equal(Hasher().digests([mine[0]]), Hasher().digests([mine[0].detach()[torch.arange(199, -1, -1)]]))


def test_many_items_share_numbers() -> None:
    digests = torch.arange(1, 1001)
    whole, parts = folded(digests.numpy())
    assert len(parts) == 4 * len(part_begins(1000)) == 1024
    digests[700] = 0
    other, also = folded(digests.numpy())
    [apart] = [place for place in range(256) if parts[4 * place :][:4] != also[4 * place :][:4]]
    begins = [*part_begins(1000), 1000]
    assert whole != other
    assert begins[apart] <= 700 < begins[apart + 1]
    assert folded(torch.empty(0, dtype=torch.int64).numpy()) == (0, "")


def test_what_has_no_memory_of_its_own_is_not_plain() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are deprecated
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    others = fake, torch.eye(2).to_sparse(), torch.ones(2, device="meta"), quantized, 3
    assert not any(map(is_plain, others))
    assert is_plain(torch.nn.Parameter(torch.ones(2)))


def test_on_a_host_numbers_are_there_at_once() -> None:
    assert HostCopy.of(torch.ones(2, dtype=torch.int64)).here()


@pytest.mark.parametrize("count", [1, 7, 60, 61, 119, 120, 500])
def test_first_elements_of_a_tensor_with_gaps(count: int) -> None:
    whole = torch.arange(120.0)
    for tensor in (
        whole,
        whole.reshape(4, 5, 6).transpose(0, 2),
        whole.reshape(10, 12).t(),
        whole[::2],
        torch.ones(()),
    ):
        assert torch.equal(first_elements(tensor, count), tensor.reshape(-1)[:count])


def test_first_elements_are_all_that_is_copied() -> None:
    wide = torch.zeros(8, 1000, 1000).transpose(0, 2)
    first = first_elements(wide, 4096)
    assert first.shape == (4096,)
    assert first.untyped_storage().nbytes() < wide.nbytes // 50
