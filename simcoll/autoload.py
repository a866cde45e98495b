"""The hook that torch calls when it is imported: it activates simcoll where ``SIMCOLL_MODE`` asks for it.

torch loads the entry points of the group ``torch.backends`` at the end of its own import. Where no mode is set this
costs one look into the environment.
"""

from __future__ import annotations

import os
import sys


def autoload() -> None:
    """Activate simcoll in this process if the environment names a mode; an unknown mode ends the process."""
    if os.environ.get("SIMCOLL_MODE", "off") in ("", "off"):
        return
    from simcoll.blackbox.stacks import offer_rank_stacks
    from simcoll.errors import BAD_INPUT, ConfigurationError
    from simcoll.wrapper.hooks import enable

    try:
        enable()
        offer_rank_stacks()
    except ConfigurationError as error:
        # torch would report any exception as a broken extension, with a traceback and wrong advice.
        sys.stderr.write(f"simcoll: SIMCOLL_MODE: {error}\n")
        raise SystemExit(BAD_INPUT) from None
