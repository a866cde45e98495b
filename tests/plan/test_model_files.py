"""Models have the parameters that were published; a user's file is read, or refused in one line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.plan.model import Model
from simcoll.plan.model_files import ModelError, known_models, model_named

PUBLISHED = [model for model in known_models().values() if model.parameters]
ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "steptimes.csv"

OWN = """
[[model]]
name = "mine"
hidden = 512
vocabulary = 32_000
layers = 4
heads = 8
kv_heads = 4
head_dim = 64
ffn = 1024
"""


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda model: model.name)
def test_the_parameters_are_those_that_were_published(model: Model) -> None:
    assert model.total == model.parameters


def test_the_parameters_are_those_of_the_measured_runs() -> None:
    with ROWS.open(newline="") as file:
        said = {row["model"].lower(): int(row["params"]) for row in csv.DictReader(file) if _of_2048_positions(row)}
    assert len(said) == 8
    assert said == {name: known_models()[name].total for name in said}


def _of_2048_positions(row: dict[str, str]) -> bool:
    return row["model"].startswith("MPT") and row["seq_len"] == "2048"


def test_the_experts_of_a_token_are_some_of_all() -> None:
    model = model_named("qwen3-30b-a3b")
    assert 3.3e9 < model.active < 3.4e9
    dense = model_named("llama3-8b")
    assert dense.active == dense.total


def test_each_model_says_where_its_figures_are_from() -> None:
    assert all(model.source for model in known_models().values())
    assert len(known_models()) >= 30


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    model = model_named(str(path))
    assert (model.attention, model.dense, model.moe) == (4, 4, 0)
    attention, feed_forward = 512 * (512 + 2 * 256) + 512 * 512, 3 * 512 * 1024
    assert model.total == 2 * 32_000 * 512 + 4 * (attention + feed_forward + 2 * 512) + 512


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            OWN.replace("heads = 8", "haeds = 8"),
            "line 7: model[1].haeds is no known key, expected heads (known",
        ),
        (OWN.replace("ffn = 1024", ""), "line 2: model[1] needs the key `ffn`"),
        (OWN.replace("512", '"512"'), "hidden is '512', expected a whole number of 0 or more"),
        (OWN.replace("512", "-1"), "hidden is -1, expected a whole number of 0 or more"),
        (OWN.replace("kv_heads = 4", "kv_heads = 3"), "kv_heads is 3, expected a divisor of the 8 heads"),
        (OWN.replace("layers = 4", "layers = 0"), "layers is 0, expected a number from 1 to 10,000"),
        (OWN.replace('name = "mine"', ""), "needs the key `name`"),
        (OWN + "experts = 4", "model[1].experts is 4, expected a table"),
        (OWN + "moe = 2", "model[1] has one of moe (or layers) and [model.experts], expected both or neither"),
        (OWN + OWN, "2 models, expected one"),
        (OWN.replace("layers = 4", ""), "needs the key `layers`"),
        (OWN.replace("head_dim = 64", "head_dim = 0"), "head_dim is 0, expected a width of at least 1"),
        (OWN.replace('"mine"', '"a\\nb"'), "name is 'a\\nb', expected a name of up to 80 letters"),
        (OWN + '"a\\nb" = 1', "model[1].a?b is no known key, expected one of name, layers"),
        (OWN + "[plan]", "plan stands outside of the models, expected [[model]] and nothing else"),
        (OWN + "dense = 5\n[model.experts]", "dense is 5, expected at most the 4 layers"),
        (
            OWN + "[model.experts]\ncuont = 1",
            "model[1].experts.cuont is no known key, expected count (known: count, top_k",
        ),
        (OWN + "[model.experts]\ncount = 8", "model[1].experts needs the keys `top_k`, `hidden`"),
        (OWN + "[model.experts]\ncount = 8\ntop_k = 9\nhidden = 4", "experts.top_k is 9, expected 1 to the 8 experts"),
        (
            OWN + "[model.experts]\ncount = 8\ntop_k = 2\nhidden = 0",
            "experts.hidden is 0, expected a width of at least 1",
        ),
        (OWN + "mamba = 1", "has one of mamba and [model.state_space], expected both or neither"),
        (OWN.replace("hidden", "hidden_size"), "hidden_size is no known key, expected hidden (known"),
        (OWN.replace("vocabulary = 32_000", ""), "line 2: model[1] needs the key `vocabulary`"),
        (OWN.replace("ffn = 1024", "ffn = 0"), "ffn is 0, expected the width of the feed-forward, at least 1"),
        (OWN.replace("[[model]]", "[model]"), "model is one table, expected [[model]], in two pairs of brackets"),
        (OWN.replace("[[model]]", ""), "name stands outside of the models, expected below a line [[model]]"),
        (OWN + "windowed = 2", "has one of windowed and window, expected both or neither"),
        ("#" * (1 << 20), "has more than"),
        ("", "no model, expected [[model]]"),
        ("[[model]", "no TOML"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ModelError) as refused:
        model_named(str(path))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_meant_by_a_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(OWN)
    Path("other").write_text(OWN)
    with pytest.raises(ModelError, match=r"but there is a file: give --model mine\.toml"):
        model_named("mine")
    with pytest.raises(ModelError, match=r"give its name an ending of \.toml"):
        model_named("other")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.toml"):
        model_named(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("name", ["", "\n", "no\x00.toml", "a" * 5000, "a" * 5000 + ".toml"])
def test_a_name_that_is_none_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ModelError) as refused:
        model_named(name)
    assert str(refused.value).isprintable()


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ModelError, match="llama3-71b: no such model, expected llama3-70b"):
        model_named("llama3-71b")


_VALUES = st.one_of(st.integers(), st.booleans(), st.text(max_size=5), st.floats())
_KEYS = st.sampled_from(["hidden", "layers", "heads", "kv_heads", "ffn", "moe", "experts", "tied", "window", "x"])


@given(st.dictionaries(_KEYS, _VALUES, max_size=6))
def test_any_values_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("models") / "any.toml"
    lines = [f"{key} = {str(value).lower() if isinstance(value, bool) else value!r}" for key, value in values.items()]
    path.write_text("[[model]]\nname = 'any'\nvocabulary = 9\nhead_dim = 8\n" + "\n".join(lines), encoding="utf-8")
    try:
        assert model_named(str(path)).total > 0
    except ModelError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said
