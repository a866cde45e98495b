"""Parameters tensor by tensor: together they are the published counts, and tensor parallel ranks divide them."""

from __future__ import annotations

import math

import pytest

from simcoll.plan.model_files import known_models
from simcoll.plan.parameters import Parameter, first_of, last_of, layers_of, padded


@pytest.mark.parametrize("name", known_models())
def test_tensors_add_up_to_the_parameters(name: str) -> None:
    model = known_models()[name]
    layers = layers_of(model)
    routed = sum(layer.count * math.prod(one.shape) for layer in layers for one in layer.experts)
    own = sum(layer.count * math.prod(one.shape) for layer in layers for one in layer.tensors)
    outside = sum(math.prod(one.shape) for one in (*first_of(model), *last_of(model)))
    assert (routed, own + routed + outside) == (model.counts()["experts"], model.total)
    assert sum(layer.count for layer in layers) == model.layers


def test_shards_are_padded_and_tensor_parallel_ranks_have_their_part() -> None:
    assert padded((30, 10), 8) == 320
    assert padded((32,), 8) == 32
    assert Parameter((96, 32), 0).local(2) == (48, 32)
    assert Parameter((32, 96), 1).local(2) == (32, 48)
    assert Parameter((32,)).local(2) == (32,)
