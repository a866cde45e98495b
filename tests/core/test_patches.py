"""Attributes of modules and classes that are replaced for a while."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from simcoll.core.patches import Patches


class Base:
    @staticmethod
    def inherited() -> str:
        return "base"


class Owner(Base):
    @staticmethod
    def static() -> str:
        return "static"


def module(**names: Any) -> Any:
    made = ModuleType("patched")
    vars(made).update(names)
    return made


def test_a_block_ends_with_what_was_there() -> None:
    owner = module(one=1, two=2)
    with Patches() as patches:
        patches.replace(owner, "one", "other")
        patches.wrap(owner, "two", lambda value: value + 40)
        assert (owner.one, owner.two, bool(patches)) == ("other", 42, True)
    assert (owner.one, owner.two, bool(patches)) == (1, 2, False)


def test_what_is_not_there_is_left_alone() -> None:
    owner = module()
    with Patches() as patches:
        patches.replace(owner, "absent", 1)
        patches.wrap(owner, "absent", lambda value: value)
        assert not hasattr(owner, "absent")
        assert not patches


def test_one_attribute_replaced_twice_becomes_what_it_was_first() -> None:
    owner = module(one=1)
    patches = Patches()
    patches.replace(owner, "one", 2)
    patches.replace(owner, "one", 3)
    patches.restore()
    assert owner.one == 1


def test_a_static_method_stays_one_and_an_inherited_one_stays_inherited() -> None:
    with Patches() as patches:
        patches.replace(Owner, "static", staticmethod(lambda: "replaced"))
        patches.replace(Owner, "inherited", staticmethod(lambda: "replaced"))
        assert (Owner.static(), Owner().inherited()) == ("replaced", "replaced")
    assert (Owner().static(), Owner().inherited()) == ("static", "base")
    assert "inherited" not in vars(Owner)
