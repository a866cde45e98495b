"""Reads models: those that come with simcoll, in ``models``, and a user's own TOML file.

A file holds one or several ``[[model]]`` tables. Keys are the fields of `simcoll.plan.model.Model`, ``[model.experts]``
and the like those of its parts; ``layers`` is short for as many attention and feed-forward blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from simcoll.core.toml import TomlDocument, TomlError, parse_toml, read_toml
from simcoll.errors import SimcollError
from simcoll.plan.model import Experts, LatentAttention, Model, StateSpace

_PARTS = {"experts": Experts, "latent_attention": LatentAttention, "state_space": StateSpace}
_BIASES = ("none", "qkv", "attention", "all")
_MOST = 1 << 40
_MOST_BLOCKS = 10_000
_Part = TypeVar("_Part")


class ModelError(SimcollError, ValueError):
    """A model that is not known or not described well: what was given, what was expected, what to do."""


@functools.cache
def known_models() -> Mapping[str, Model]:
    """The models that come with simcoll, by name."""
    found: dict[str, Model] = {}
    for file in sorted(files("simcoll.plan").joinpath("models").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            for model in _models(parse_toml(file.name, file.read_text("utf-8"))):
                found[model.name] = model
    return found


def model_named(name: str) -> Model:
    """The model of a name, or of a TOML file with one model; raises ModelError, which names the nearest ones."""
    known = known_models()
    plain = name.strip().lower()
    if plain in known:
        return known[plain]
    if name.endswith(".toml") and name.isprintable():
        try:
            found = _models(read_toml(Path(name), ", expected one model"))
        except TomlError as error:
            raise ModelError(str(error)) from None
        if len(found) > 1:
            raise ModelError(f"{name}: {len(found)} models, expected one")
        return found[0]
    near = get_close_matches(plain, known, n=4, cutoff=0.4)
    expected = " or ".join(near) if near else f"one of {', '.join(known)}"
    raise ModelError(_one_line(f"--model {name:.60}: no such model, expected {expected}, or a .toml file"))


def _one_line(text: str) -> str:
    """A text whose control characters, of a name or a key, are question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _models(document: TomlDocument) -> list[Model]:
    tables = document.value.get("model")
    for key in document.value:
        if key != "model":
            raise _error(document, (key,), key, "nothing beside [[model]]")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, Mapping) for table in tables):
        raise ModelError(f"{document.name}: no model, expected [[model]] with its name, hidden, layers, heads and more")
    return [_model(document, number, table) for number, table in enumerate(tables)]


def _model(document: TomlDocument, number: int, table: Mapping[str, Any]) -> Model:
    given = dict(table)
    layers = given.pop("layers", None)
    if layers is not None:
        if type(layers) is not int or not 0 < layers <= _MOST_BLOCKS:
            raise _error(document, ("model", number, "layers"), layers, f"a number from 1 to {_MOST_BLOCKS:,}")
        if type(given.get("dense", 0)) is int and given.get("dense", 0) > layers:
            raise _error(document, ("model", number, "dense"), given["dense"], f"at most the {layers} layers")
        given.setdefault("attention", layers)
        dense, moe = given.get("dense", 0), given.get("moe", 0)
        if "experts" in given and type(dense) is int:
            given.setdefault("moe", layers - dense)
        elif type(moe) is int:
            given.setdefault("dense", layers - moe)
    for name, kind in _PARTS.items():
        if name in given:
            given[name] = _built(document, ("model", number, name), kind, given[name])
    model = _built(document, ("model", number), Model, given)
    _check(document, number, model)
    return model


def _built(document: TomlDocument, place: tuple[str | int, ...], kind: type[_Part], table: object) -> _Part:
    """A dataclass of a table whose keys are its fields; raises ModelError for a key or value that does not fit."""
    if not isinstance(table, Mapping):
        raise _error(document, place, table, "a table")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key, value in table.items():
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.4)
            raise _error(document, (*place, key), key, near[0] if near else f"one of {', '.join(known)}")
        default = known[key].default
        wanted = int if default is MISSING else type(default)
        if key in ("name", "source", "biases"):
            wanted = str
        if key in _PARTS:
            continue
        if type(value) is not wanted or (wanted is int and not 0 <= value < _MOST):
            raise _error(document, (*place, key), value, _KINDS[wanted])
    for name, field in known.items():
        if field.default is MISSING and name not in table:
            wanted_key = "layers" if name == "attention" else name
            raise ModelError(f"{document.error(place, f'needs the key `{wanted_key}`')}")
    return kind(**table)


_KINDS: Mapping[type, str] = {int: "a whole number of 0 or more", bool: "true or false", str: "a text in quotes"}


def _error(document: TomlDocument, place: tuple[str | int, ...], value: object, expected: str) -> ModelError:
    return ModelError(_one_line(str(document.error(place, f"is {value!r:.60}, expected {expected}"))))


def _check(document: TomlDocument, number: int, model: Model) -> None:
    """Raises ModelError where the parts of a model do not go together."""
    wrong = [
        (not model.name or not model.name.isprintable() or len(model.name) > 80, "name", "a name of up to 80 letters"),
        (min(model.hidden, model.vocabulary) < 1, "hidden", "widths of at least 1"),
        (model.biases not in _BIASES, "biases", " or ".join(_BIASES)),
        (max(model.attention, model.dense, model.moe, model.mamba) > _MOST_BLOCKS, "attention", "fewer blocks"),
        (model.attention + model.mamba < 1, "attention", "at least one block, or `layers`"),
        (model.attention > 0 and min(model.heads, model.kv_heads) < 1, "heads", "at least one head"),
        (model.attention > 0 and min(model.query_width, model.value_width) < 1, "head_dim", "a width of at least 1"),
        (model.kv_heads > 0 and model.heads % max(model.kv_heads, 1) > 0, "kv_heads", "a divisor of heads"),
        (model.dense > 0 and model.ffn < 1, "ffn", "the width of the dense blocks"),
        ((model.moe > 0) != (model.experts is not None), "moe", "blocks and [model.experts], both or neither"),
        ((model.mamba > 0) != (model.state_space is not None), "mamba", "blocks and [model.state_space], both or none"),
        (model.experts is not None and not 0 < model.experts.top_k <= model.experts.count, "experts", "top_k <= count"),
        (model.experts is not None and model.experts.hidden < 1, "experts", "hidden of at least 1"),
        (
            model.state_space is not None and model.state_space.inner < 1,
            "state_space",
            "heads and head_dim of 1 or more",
        ),
        (model.windowed > model.attention or (model.windowed > 0) != (model.window > 0), "window", "both or neither"),
    ]
    for bad, key, expected in wrong:
        if bad:
            raise ModelError(str(document.error(("model", number, key), f"does not fit, expected {expected}")))
