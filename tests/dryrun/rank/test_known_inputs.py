"""What ranks gave to calls: written down exactly, and answered by the table's meaning, the same on every rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.dryrun.rank.known_inputs import GivenInputs, InputsFile, KnownInputs, inputs_name, read_inputs
from simcoll.errors import SimcollError
from simcoll.spec.call import Buffer, Call

SIZE = 3


def all_reduce(reduce_op: str, array: npt.NDArray[np.float32]) -> Call:
    buffer = Buffer(array.shape, array.dtype.name)
    return Call("all_reduce", "allreduce", (buffer,), (buffer,), reduce_op)


def written(folder: Path, rank: int, array: npt.NDArray[np.float32], guessed: bool = False) -> dict[str, GivenInputs]:
    group = InputsFile(folder / inputs_name(rank), SIZE, None).of_group(range(SIZE), rank)
    assert group.answer(all_reduce("sum", array), [array], guessed=guessed) is None
    return read_inputs(folder / inputs_name(rank))


def answered(folder: Path, known: KnownInputs, reduce_op: str = "sum") -> tuple[list[float], bool] | None:
    group = InputsFile(folder / "own", SIZE, known).of_group(range(SIZE), 0)
    array = np.zeros(2, np.float32)
    answer = group.answer(all_reduce(reduce_op, array), [array], guessed=False)
    if answer is None or answer[0][0] is None:
        return None
    return answer[0][0].tolist(), answer[1]


@given(st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), min_size=SIZE, max_size=SIZE))
def test_what_is_written_is_answered_exactly(tmp_path_factory: pytest.TempPathFactory, rows: list[list[float]]) -> None:
    folder = tmp_path_factory.mktemp("given")
    arrays = [np.array(row, np.float32) for row in rows]
    known = KnownInputs({rank: written(folder, rank, array) for rank, array in enumerate(arrays)})
    with np.errstate(all="ignore"):
        expected = arrays[0] + arrays[1] + arrays[2]
        answer = answered(folder, known)
    assert answer is not None
    np.testing.assert_array_equal(answer[0], expected)
    assert answer[1]


@pytest.mark.parametrize(
    ("ranks", "guessed", "trusted", "reduce_op", "expected"),
    [
        ((0, 1, 2), False, True, "sum", ([3, 6], True)),
        ((0, 1, 2), True, True, "sum", ([3, 6], False)),
        ((0, 1, 2), False, False, "sum", ([3, 6], False)),
        ((1,), False, True, "sum", ([3, 6], False)),
        ((), False, True, "sum", None),
        ((0, 1, 2), False, True, "max", None),
    ],
)
def test_what_is_known_for_certain(
    ranks: tuple[int, ...], guessed: bool, trusted: bool, reduce_op: str, expected: object, tmp_path: Path
) -> None:
    array = np.array([1, 2], np.float32)
    known = KnownInputs({rank: written(tmp_path, rank, array, guessed) for rank in ranks}, trusted)
    assert answered(tmp_path, known, reduce_op) == expected


def test_much_is_not_written(tmp_path: Path) -> None:
    assert written(tmp_path, 0, np.zeros(257, np.float32)) == {}


def test_files_of_others_are_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / inputs_name(0)
    assert read_inputs(path) == {}
    name, one = next(iter(written(tmp_path, 0, np.zeros(2, np.float32)).items()))
    path.write_text(f"{name} 0 {one.text}\n{name} 0 [cut")
    assert read_inputs(path) == {name: one}
    for text in ("[1, 2]", "nothing", one.text.replace('[["float32"', '[["object"')):
        with pytest.raises(SimcollError, match="cannot be read"):
            answered(tmp_path, KnownInputs({0: {name: GivenInputs(text, False)}}))
