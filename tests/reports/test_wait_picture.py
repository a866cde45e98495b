"""The picture of a circle of waits: each box apart, each arrow from who waits to whom it waits for."""

from __future__ import annotations

from itertools import combinations

import pytest

from simcoll.reports.wait_picture import WaitBox, WaitPicture, is_circle, wait_picture
from simcoll.verifier.findings.finding import Finding, Severity, Side


def circle(number: int) -> Finding:
    sides = tuple(Side((rank,), None, (), f"waits for rank {(rank + 1) % number}") for rank in range(number))
    return Finding("SC204", Severity.ERROR, "none can go on", ranks=tuple(range(number)), culprits=(1,), sides=sides)


def apart(one: WaitBox, other: WaitBox, picture: WaitPicture) -> bool:
    return abs(one.x - other.x) >= picture.box[0] or abs(one.y - other.y) >= picture.box[1]


@pytest.mark.parametrize("number", range(2, 13))
def test_boxes_are_apart_and_inside(number: int) -> None:
    picture = wait_picture(circle(number))
    assert len(picture.boxes) == len(picture.arrows) == number
    assert all(apart(one, other, picture) for one, other in combinations(picture.boxes, 2))
    for box in picture.boxes:
        assert picture.box[0] / 2 <= box.x <= picture.width - picture.box[0] / 2
        assert picture.box[1] / 2 <= box.y <= picture.height - picture.box[1] / 2


@pytest.mark.parametrize("number", [2, 3, 7])
def test_arrows_follow_the_circle(number: int) -> None:
    picture = wait_picture(circle(number))
    for place, arrow in enumerate(picture.arrows):
        for point, box in ((arrow.start, picture.boxes[place]), (arrow.end, picture.boxes[(place + 1) % number])):
            assert abs(point[0] - box.x) <= picture.box[0] / 2 + 10
            assert abs(point[1] - box.y) <= picture.box[1] / 2 + 10


def test_a_long_circle_says_how_many_are_not_drawn() -> None:
    picture = wait_picture(circle(40))
    assert picture.left_out == 28
    assert picture.boxes[-1].ranks == "and 28 more"


def test_culprits_are_marked() -> None:
    assert [box.culprit for box in wait_picture(circle(3)).boxes] == [False, True, False]


def test_what_is_no_circle() -> None:
    assert is_circle(circle(2))
    assert not is_circle(Finding("SC201", Severity.ERROR, "late", sides=circle(2).sides))
