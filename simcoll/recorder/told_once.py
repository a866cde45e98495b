"""An error that all ranks of a group raise is printed whole by one of them on each node, and kept by the rest in files.

A mismatch ends every rank of its group with the same text: printed by each, it buries the report of ``simcoll run``
under thousands of lines. This holds for ranks that print where their launcher does: a rank with a log of its own prints
all there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

from simcoll.blackbox.format import SUFFIX
from simcoll.blackbox.stacks import TRACEBACK_SUFFIX
from simcoll.core.io import write_whole
from simcoll.errors import CollectiveMismatchError

VARIABLE: Final = "SIMCOLL_TOLD"
"""Names a launcher's stderr, as device and inode, and the folder of what its ranks have printed."""

_HEADING = "simcoll: the error that ended this rank; another rank has printed the same"

_INSIDE: Final = re.compile(r"Got the following error when running the callback: (CollectiveMismatchError): ")
_TOLD: Final = re.compile(r"^simcoll: (SC\d+) \S+ in group (\S+) \(.*?\), collective (\d+): ", re.MULTILINE)


class ToldErrors:
    """The errors that the ranks of one launcher have printed: an empty file each, in a folder of their own."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def begin(self) -> None:
        """The ranks that start next have printed nothing; without room for the folder all print everything."""
        self.end()
        with contextlib.suppress(OSError):
            here = os.fstat(2)
            self._folder = Path(tempfile.mkdtemp(prefix="simcoll-told-"))
            os.environ[VARIABLE] = f"{here.st_dev}:{here.st_ino}:{self._folder}"

    def end(self) -> None:
        """No rank runs any more."""
        os.environ.pop(VARIABLE, None)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def kept_instead(error: BaseException, box: Path) -> bool:
    """True if another rank has printed this error, and this one's traceback is in the file beside its black box."""
    device, _, rest = os.environ.get(VARIABLE, "").partition(":")
    inode, _, folder = rest.partition(":")
    key = _key(error)
    if not folder or key is None or _claimed(key, device, inode, Path(folder)):
        return False
    text = "".join(traceback.format_exception(error))
    try:
        write_whole(box.with_name(box.name.removesuffix(SUFFIX) + TRACEBACK_SUFFIX), f"{_HEADING}\n{text}")
    except OSError:
        return False
    return True


def _claimed(key: str, device: str, inode: str, folder: Path) -> bool:
    """True if this rank is to print the error: it is the first, or it prints elsewhere than the launcher."""
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    try:
        here = os.fstat(2)
        if (str(here.st_dev), str(here.st_ino)) != (device, inode):
            return True
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _key(error: BaseException) -> str | None:
    """The same text on all ranks that raise one error; None of an error that every rank prints.

    In the backward pass of DistributedDataParallel torch raises a RuntimeError with the text of the mismatch in it.
    """
    if isinstance(error, CollectiveMismatchError):
        kind = type(error).__name__
        found = [(one.code, one.group and one.group.name, one.sequence) for one in error.findings]
    elif type(error) is RuntimeError and (inside := _INSIDE.match(text := str(error))):
        kind = inside[1]
        found = [(code, group, int(number)) for code, group, number in _TOLD.findall(text)]
    else:
        return None
    return f"{kind} {found}"


def prints_as_python(hook: object) -> bool:
    """True for Python's own hook: what a user's hook makes of an error is not for simcoll to leave out."""
    return hook is None or hook is sys.__excepthook__
