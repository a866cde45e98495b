"""Damages files for tests: flips bits, loses, doubles or swaps blocks, puts other things in place of files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

Bytes = Callable[[random.Random, bytearray], None]


def flip_bits(chance: random.Random, data: bytearray) -> None:
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        if data:
            data[_place(chance, data)] ^= 1 << chance.randrange(8)


def _place(chance: random.Random, data: bytearray) -> int:
    """Somewhere in the file; as a rule where it is not zero, as much of a black box is."""
    for _ in range(64):
        place = chance.randrange(len(data))
        if data[place]:
            return place
    return place


def _run(chance: random.Random, data: bytearray) -> slice:
    start = _place(chance, data) if data else 0
    return slice(start, min(len(data), start + chance.choice((1, 4, 16, 64, 512, 4096, 65536))))


def zeros(chance: random.Random, data: bytearray) -> None:
    run = _run(chance, data)
    data[run] = bytes(len(data[run]))


def ones(chance: random.Random, data: bytearray) -> None:
    run = _run(chance, data)
    data[run] = b"\xff" * len(data[run])


def noise(chance: random.Random, data: bytearray) -> None:
    run = _run(chance, data)
    data[run] = chance.randbytes(len(data[run]))


def cut(chance: random.Random, data: bytearray) -> None:
    del data[chance.randrange(len(data) + 1) if chance.random() < 0.5 or not data else _place(chance, data) :]


def lose(chance: random.Random, data: bytearray) -> None:
    del data[_run(chance, data)]


def double(chance: random.Random, data: bytearray) -> None:
    run = _run(chance, data)
    data[run.stop : run.stop] = data[run] * chance.choice((1, 1, 3))


def insert(chance: random.Random, data: bytearray) -> None:
    at = _run(chance, data).start
    words = (
        b"\0",
        b"\r\n",
        b"\xff\xfe",
        b'"',
        b"{",
        b"[" * 5000,
        b"9" * 5000,
        b"NaN",
        b"<",
        b"&x;",
        b"\x80\x04",
        b"-1",
    )
    data[at:at] = chance.choice((chance.randbytes(chance.choice((1, 7, 300))), chance.choice(words)))


def swap(chance: random.Random, data: bytearray) -> None:
    one, other = _run(chance, data), _run(chance, data)
    if one.stop <= other.start:
        data[one.start : other.stop] = data[other] + data[one.stop : other.start] + data[one]


def empty(chance: random.Random, data: bytearray) -> None:
    del chance
    data.clear()


CONTENTS: tuple[Bytes, ...] = (
    flip_bits,
    flip_bits,
    flip_bits,
    zeros,
    ones,
    noise,
    cut,
    lose,
    double,
    insert,
    swap,
    empty,
)


def damage_contents(chance: random.Random, path: Path) -> str:
    """Damage what a file holds, in one to three ways; which."""
    data, done = bytearray(path.read_bytes()), []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        way = chance.choice(CONTENTS)
        way(chance, data)
        done.append(way.__name__)
    path.write_bytes(data)
    return f"{path.name}: {'+'.join(done)}"


def a_folder(path: Path) -> None:
    path.mkdir()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def one_that_nobody_may_read(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


PLACES = (a_folder, a_pipe, a_device, a_loop, a_link_to_nothing, one_that_nobody_may_read)


def damage_place(chance: random.Random, path: Path) -> str:
    """Put something else in a file's place; what."""
    way = chance.choice(PLACES)
    path.unlink()
    way(path)
    return f"{path.name}: {way.__name__}"


def exchange(path: Path, contents: bytes) -> str:
    """Give a file another one's contents."""
    path.write_bytes(contents)
    return f"{path.name}: exchange"
