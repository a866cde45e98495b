"""Fields of tensors are found where they lie, or not at all; who looks at them reads what they would tell."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.recorder.arguments import USUAL_FORMS, Reader, new_reader  # noqa: E402
from simcoll.recorder.option_fields import option_fields  # noqa: E402
from simcoll.recorder.tensor_fields import tensor_fields  # noqa: E402
from tests.support.asked import Asked  # noqa: E402
from tests.support.native import parts  # noqa: E402


def readers() -> tuple[Reader, Reader]:
    """One that looks at tensors, and one that asks them."""
    with parts("compiled"):
        looking, asking = new_reader(option_fields(), tensor_fields()), new_reader(option_fields())
    assert looking is not None
    assert asking is not None
    return looking, asking


def key(reader: Reader, *tensors: Any) -> tuple[object, ...]:
    read = reader.read(*USUAL_FORMS["allreduce"], ([*tensors], dist.AllreduceOptions()))
    return () if read is None else read[4]


def test_the_fields_of_this_torch_are_found() -> None:
    assert tensor_fields() is not None


def resized() -> Any:
    tensor = torch.zeros(4)
    key(readers()[0], tensor)
    return tensor.resize_(2, 2)


def inferred() -> Any:
    with torch.inference_mode():
        return torch.zeros(3)


TENSORS: dict[str, Callable[[], Any]] = {
    "scalar": lambda: torch.zeros(()),
    "empty": lambda: torch.zeros(0, 3),
    "five dimensions": lambda: torch.zeros(1, 2, 3, 4, 5),
    "six dimensions": lambda: torch.zeros(1, 2, 3, 4, 5, 6),
    "six dimensions, transposed": lambda: torch.zeros(1, 2, 3, 4, 5, 6).transpose(1, 2),
    "transposed": lambda: torch.zeros(2, 3).T,
    "with gaps": lambda: torch.zeros(4, 4)[:, 1:3],
    "broadcast": lambda: torch.zeros(1).expand(3),
    "channels last": lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a parameter": lambda: torch.nn.Parameter(torch.zeros(3)),
    "with a gradient": lambda: torch.zeros(3, requires_grad=True),
    "a result": lambda: torch.zeros(3, requires_grad=True) * 2,
    "inference": inferred,
    "resized": resized,
    "another device": lambda: torch.zeros(3, device="meta"),
    "conjugate": lambda: torch.zeros(3, dtype=torch.complex64).conj(),
    "half precision": lambda: torch.zeros(3, dtype=torch.bfloat16),
    "truth values": lambda: torch.zeros(3, dtype=torch.bool),
    "quantised": lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
    "sparse": lambda: torch.zeros(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", TENSORS)
def test_what_is_seen_is_what_a_tensor_says(kind: str) -> None:
    looking, asking = readers()
    for _ in range(2):
        tensor = TENSORS[kind]()
        assert key(looking, tensor) == key(asking, tensor)


def test_tensors_that_change_are_seen_as_they_are() -> None:
    looking, asking = readers()
    tensor = torch.zeros(6)
    before = key(looking, tensor)

    def changes() -> Iterator[None]:
        yield
        tensor.resize_(3, 4)
        yield
        tensor.t_()
        yield
        tensor.data = torch.zeros(2, 2, dtype=torch.int32)
        yield
        tensor.set_(torch.zeros(3, dtype=torch.int32))
        yield

    seen = []
    for _ in changes():
        seen.append(key(looking, tensor))
        assert seen[-1] == key(asking, tensor)
    assert len(set(seen)) == len(seen)
    assert key(looking, torch.zeros(6)) == before == seen[0]


def test_random_tensors_are_seen_as_they_are() -> None:
    # More forms than are kept.
    looking, asking = readers()
    chance = random.Random(7)
    for _ in range(1_500):
        shape = [chance.randrange(6) for _ in range(chance.randrange(7))]
        tensor = torch.empty(shape, dtype=chance.choice((torch.float32, torch.float64, torch.int8, torch.uint8)))
        if chance.random() < 0.5:
            tensor = tensor.permute(chance.sample(range(len(shape)), len(shape)))
        if shape and chance.random() < 0.5:
            tensor = tensor.narrow(0, 0, tensor.shape[0] // 2)
        assert key(looking, tensor) == key(asking, tensor)


def test_a_tensor_of_a_known_form_is_asked_nothing() -> None:
    looking, asking = readers()
    key(looking, torch.zeros(2, 3))
    other = torch.ones(2, 3)
    for reader, count in ((looking, 0), (asking, 5)):
        with Asked() as asked:
            key(reader, other)
        assert asked.count == count


def test_tensors_that_pretend_to_be_elsewhere_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, asking = readers()
    tensor = torch.zeros(2)
    key(looking, tensor)
    monkeypatch.setattr(torch.Tensor, "device", property(lambda _: torch.device("cuda", 1)))
    assert key(looking, tensor) == key(asking, tensor)
    assert torch.device("cuda", 1) in key(looking, tensor)


@pytest.mark.parametrize("nothing", [b"", bytes(256), os.urandom(256)], ids=["short", "zeros", "random"])
def test_memory_that_does_not_change_with_the_fields_is_not_looked_at(
    nothing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: nothing)
    assert tensor_fields() is None


def test_without_proc_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert tensor_fields() is None


def test_what_lies_behind_a_tensor_is_no_field_of_it() -> None:
    """The same places are found among tensors that come and go, of which some lie behind those that are looked at."""
    kept: list[Any] = []
    choose, first = random.Random(3), tensor_fields()
    assert first is not None
    for _ in range(600):
        kept += [torch.zeros(3) for _ in range(choose.randrange(6))]
        if choose.random() < 0.5:
            del kept[: choose.randrange(8)]
        assert tensor_fields() == first


def test_a_mode_that_makes_other_tensors_hides_no_field() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        found = tensor_fields()
    assert found == tensor_fields()
    assert found is not None
