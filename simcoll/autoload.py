"""The hook that torch calls when it is imported: it activates simcoll where ``SIMCOLL_MODE`` asks for it.

torch loads the entry points of the group ``torch.backends`` at the end of its own import. Where no mode is set this
costs one look into the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def autoload() -> None:
    """Activate simcoll in this process if the environment names a mode; an unknown mode ends the process."""
    if os.environ.get("SIMCOLL_MODE", "off") in ("", "off"):
        return
    with _importing_anew():
        from simcoll.blackbox.stacks import offer_rank_stacks
        from simcoll.errors import BAD_INPUT, ConfigurationError
        from simcoll.wrapper.hooks import enable

    try:
        enable()
        offer_rank_stacks()
    except ConfigurationError as error:
        # torch would report any exception as a broken extension, with a traceback and wrong advice.
        sys.stderr.write(f"simcoll: {error}\n")
        raise SystemExit(BAD_INPUT) from None


@contextmanager
def _importing_anew() -> Iterator[None]:
    """Have modules of simcoll that are half imported imported anew: one of them has just imported torch.

    What needs such a module would find half of it. The import that is under way gives the whole one, as importlib takes
    what stands in ``sys.modules`` at its end.
    """
    half = {name: module for name, module in sys.modules.items() if name.startswith("simcoll.") and _is_half(module)}
    for name in half:
        del sys.modules[name]
    try:
        yield
    finally:
        for name, module in half.items():
            sys.modules.setdefault(name, module)


def _is_half(module: object) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
