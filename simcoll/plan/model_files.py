"""Reads models: those that come with simcoll, in ``models``, and a user's own TOML file.

A file holds one or several ``[[model]]`` tables. Keys are the fields of `simcoll.plan.model.Model`, ``[model.experts]``
and the like those of its parts; ``layers`` is short for as many attention and feed-forward blocks.
"""

from __future__ import annotations

import contextlib
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
    if name.isprintable() and (own := _own_file(name)):
        raise ModelError(f"--model {name:.60}: no such model, but there is a file: {own}")
    near = get_close_matches(plain, known, n=4, cutoff=0.4)
    expected = " or ".join(near) if near else f"one of {', '.join(known)}"
    raise ModelError(_one_line(f"--model {name:.60}: no such model, expected {expected}, or a .toml file"))


def _own_file(name: str) -> str:
    """What a user who left out ``.toml``, or named a file of another ending, should give; else nothing."""
    with contextlib.suppress(OSError, ValueError):
        if name and Path(f"{name}.toml").is_file():
            return f"give --model {name}.toml"
        if Path(name).is_file():
            return "give its name an ending of .toml"
    return ""


def _one_line(text: str) -> str:
    """A text whose control characters, of a name or a key, are question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _models(document: TomlDocument) -> list[Model]:
    tables = document.value.get("model")
    if isinstance(tables, Mapping):
        raise _fault(document, ("model",), "is one table, expected [[model]], in two pairs of brackets")
    for key in document.value:
        if key != "model":
            where = "below a line [[model]]" if key in _keys(Model) else "[[model]] and nothing else"
            raise _fault(document, (key,), f"stands outside of the models, expected {where}")
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
            raise _fault(document, (*place, key), f"is no known key{_meant(key, kind)}")
        default = known[key].default
        wanted = int if default is MISSING else type(default)
        if key in ("name", "source", "biases"):
            wanted = str
        if key in _PARTS:
            continue
        if type(value) is not wanted or (wanted is int and not 0 <= value < _MOST):
            raise _error(document, (*place, key), value, _KINDS[wanted])
    wanting = [name for name, field in known.items() if field.default is MISSING and name not in table]
    if wanting:
        raise _missing(document, place, *("layers" if name == "attention" else name for name in wanting))
    return kind(**table)


_KINDS: Mapping[type, str] = {int: "a whole number of 0 or more", bool: "true or false", str: "a text in quotes"}

_OTHER_NAMES = {
    "hidden_size": "hidden",
    "n_embd": "hidden",
    "vocab_size": "vocabulary",
    "num_hidden_layers": "layers",
    "n_layer": "layers",
    "num_attention_heads": "heads",
    "n_head": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn",
    "tie_word_embeddings": "tied",
    "sliding_window": "window, with windowed: the layers that have one",
    "num_experts": "count in [model.experts]",
    "num_local_experts": "count in [model.experts]",
    "n_routed_experts": "count in [model.experts]",
    "num_experts_per_tok": "top_k in [model.experts]",
    "moe_intermediate_size": "hidden in [model.experts]",
}
"""The keys of Hugging Face's ``config.json``, from which many describe their models."""


def _keys(kind: type[Any]) -> list[str]:
    """The keys of a table, in the order in which one writes them."""
    return [*(["name", "layers"] if kind is Model else []), *(one.name for one in fields(kind) if one.name != "name")]


def _meant(key: str, kind: type[Any]) -> str:
    """The key that is meant by an unknown one, and all that are known."""
    known = _keys(kind)
    near = _OTHER_NAMES.get(key) or next(iter(get_close_matches(key, known, n=1, cutoff=0.6)), "")
    listed = ", ".join(known)
    return f", expected {near} (known: {listed})" if near else f", expected one of {listed}"


def _missing(document: TomlDocument, place: tuple[str | int, ...], *keys: str) -> ModelError:
    """The error about keys that a table needs and does not have."""
    noun = "key" if len(keys) == 1 else "keys"
    return _fault(document, place, f"needs the {noun} {', '.join(f'`{key}`' for key in keys)}")


def _error(document: TomlDocument, place: tuple[str | int, ...], value: object, expected: str) -> ModelError:
    return _fault(document, place, f"is {value!r:.60}, expected {expected}")


def _fault(document: TomlDocument, place: tuple[str | int, ...], said: str) -> ModelError:
    return ModelError(_one_line(str(document.error(place, said))))


def _check(document: TomlDocument, number: int, model: Model) -> None:
    """Raises ModelError where a key's value is out of bounds, or the parts of a model do not go together."""
    place, experts, block = ("model", number), model.experts, model.state_space
    named = bool(model.name) and model.name.isprintable() and len(model.name) <= 80
    bounds: list[tuple[bool, str, object, str]] = [
        (named, "name", model.name, "a name of up to 80 letters"),
        (model.hidden > 0, "hidden", model.hidden, "a width of at least 1"),
        (model.vocabulary > 0, "vocabulary", model.vocabulary, "at least 1 token"),
        (model.biases in _BIASES, "biases", model.biases, " or ".join(_BIASES)),
        (model.attention + model.mamba > 0, "attention", model.attention, "at least one block, or `layers`"),
    ]
    for name in ("attention", "dense", "moe", "mamba"):
        blocks = getattr(model, name)
        bounds.append((blocks <= _MOST_BLOCKS, name, blocks, f"at most {_MOST_BLOCKS:,} blocks"))
    if model.attention:
        latent = "latent_attention" if model.latent_attention else "head_dim"
        width = min(model.query_width, model.value_width)
        divides = model.kv_heads > 0 and model.heads % model.kv_heads == 0
        bounds += [
            (model.heads > 0, "heads", model.heads, "at least one head"),
            (divides, "kv_heads", model.kv_heads, f"a divisor of the {model.heads} heads"),
            (width > 0, latent, width, "a width of at least 1"),
        ]
    bounds.append((model.windowed <= model.attention, "windowed", model.windowed, f"at most {model.attention} blocks"))
    if experts is not None:
        bounds.append((experts.hidden > 0, "experts.hidden", experts.hidden, "a width of at least 1"))
        few = f"1 to the {experts.count} experts"
        bounds.append((0 < experts.top_k <= experts.count, "experts.top_k", experts.top_k, few))
    if block is not None:
        bounds.append((block.inner > 0, "state_space", block.inner, "heads and head_dim of at least 1"))
    for good, key, value, expected in bounds:
        if not good:
            raise _error(document, (*place, *key.split(".")), value, expected)
    if model.dense and not model.ffn:
        given = "ffn" in document.value["model"][number]
        wrong = _error(document, (*place, "ffn"), 0, "the width of the feed-forward, at least 1")
        raise wrong if given else _missing(document, place, "ffn")
    for one, other, both in (
        (model.moe, experts, "moe (or layers) and [model.experts]"),
        (model.mamba, block, "mamba and [model.state_space]"),
        (model.windowed, model.window, "windowed and window"),
    ):
        if bool(one) != bool(other):
            raise _fault(document, place, f"has one of {both}, expected both or neither")
