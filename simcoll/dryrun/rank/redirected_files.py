"""Keeps a rank's files apart where the kernel gives it no overlays: Python's own file functions are redirected.

Functions that change files work on a copy in the rank's own folder, *upper*; those that read look there first. A
removed file leaves an empty one there, whose name says so. Only Python's functions that take a path are redirected:
other code, and other programs that the rank starts, read and write the real files.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import os
import pathlib
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.private_mounts import FolderLayer
from simcoll.dryrun.rank.shared_files import WHITEOUT

_REAL = ("/dev", "/proc", "/sys")
_FOLLOWING = ("stat", "access", "chdir", "statvfs", "listxattr", "getxattr")
_NOT_FOLLOWING = ("lstat", "readlink")
_CHANGING = ("truncate", "chmod", "chown", "utime", "setxattr", "removexattr")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_MOST_LINKS = 40
_COPY = ".simcoll-copy"


def redirect_files(patches: Patches, upper: Path, kept: Path) -> list[FolderLayer]:
    """Redirect this process's writes to ``upper``, except those to the folder ``kept``; returns the layer."""
    upper.mkdir(parents=True)
    files = _RedirectedFiles(str(upper.resolve()), (*_REAL, str(kept)))
    redirected = {
        **{name: files.on_path(name, files.found) for name in _FOLLOWING},
        **{name: files.on_path(name, files.here) for name in _NOT_FOLLOWING},
        **{name: files.on_path(name, files.copied) for name in _CHANGING},
        **{name: files.calling(getattr(files, name)) for name in ("mkdir", "rmdir", "symlink", "link", "listdir")},
        **dict.fromkeys(("remove", "unlink"), files.calling(files.remove)),
        **dict.fromkeys(("rename", "replace"), files.calling(files.rename)),
        "scandir": files.calling(files.scandir),
        "open": files.calling(files.open_descriptor, os.open),
    }
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10
    opening = files.calling(files.open_file, io.open)
    for name, function in redirected.items():
        patches.replace(os, name, function)
        patches.replace(accessor, name, staticmethod(function))
    patches.replace(accessor, "open", staticmethod(opening))
    patches.replace(builtins, "open", opening)
    patches.replace(io, "open", opening)
    patches.replace(shutil, "_use_fd_functions", False)
    patches.wrap(torch, "save", _saving)
    return [FolderLayer("/", files.upper)]


def _saving(save: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.save`` that opens the file in Python."""

    @functools.wraps(save)
    def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, (str, os.PathLike)):
            return save(obj, f, *args, **kwargs)
        with open(f, "wb") as file:
            return save(obj, file, *args, **kwargs)

    return saving


class _Depth(threading.local):
    """Above 0 where the current thread sees the real files."""

    within = 0


class _RedirectedFiles:
    """The files that the program sees: those in ``upper``, and the real ones that are not hidden."""

    def __init__(self, upper: str, real: tuple[str, ...]) -> None:
        self.upper = upper
        self._real = (*real, upper)
        self._sockets = os.path.join(tempfile.gettempdir(), "pymp-")
        self._depth = _Depth()

    def calling(self, function: Callable[..., Any], original: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """The function, within which the real files are seen; errors name the path that the program gave."""
        real = original or getattr(os, function.__name__)

        @functools.wraps(real)
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if self._depth.within or not self._is_redirected(path, kwargs):
                return real(path, *args, **kwargs)
            self._depth.within = 1
            try:
                return function(path, *args, **kwargs)
            except OSError as error:
                if error.filename is not None and error.filename2 is None:
                    error.filename = path
                raise
            finally:
                self._depth.within = 0

        for supported in (os.supports_follow_symlinks, os.supports_fd, os.supports_dir_fd, os.supports_effective_ids):
            if real in supported:
                supported.add(call)
        return call

    def on_path(self, name: str, choose: Callable[[str], str]) -> Callable[..., Any]:
        """A function of ``os`` on the path that ``choose`` chooses."""
        original = getattr(os, name)

        def on_chosen(path: Any, *args: Any, **kwargs: Any) -> Any:
            follows = kwargs.get("follow_symlinks", True) or choose != self.found
            return original(choose(path) if follows else self.here(path), *args, **kwargs)

        return self.calling(on_chosen, original)

    def _is_redirected(self, path: Any, kwargs: dict[str, Any]) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)) or any(
            kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")
        ):
            return False
        place = os.path.abspath(os.fsdecode(path))
        # multiprocessing binds sockets in its temporary folders, which it removes itself.
        return not any(place == one or place.startswith((one + "/", self._sockets)) for one in self._real)

    def _place(self, path: Any) -> str:
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        return os.path.join(os.path.realpath(folder), name) if name else folder

    def _is_hidden(self, place: str) -> bool:
        """True if the program has removed the real file, or a folder that it is in."""
        while place != "/":
            if os.path.lexists(self.upper + _whiteout(place)):
                return True
            place = os.path.dirname(place)
        return False

    def here(self, path: Any) -> str:
        """The place of a file or link that the program names."""
        place = self._place(path)
        own = self.upper + place
        return own if os.path.lexists(own) or self._is_hidden(place) else place

    def found(self, path: Any) -> str:
        """The place of the file that the program reads, links followed; raises OSError where they form a cycle."""
        place = self._place(path)
        for _ in range(_MOST_LINKS):
            here = self.here(place)
            if not os.path.islink(here):
                return here
            place = self._place(os.path.join(os.path.dirname(place), os.readlink(here)))
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(path))

    def made(self, path: Any) -> str:
        """The place at which to make a file; its folder has to exist."""
        place = self._place(path)
        folder = self.found(os.path.dirname(place))
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(path))
        if not folder.startswith(self.upper) and not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))
        own = os.path.join(folder if folder.startswith(self.upper) else self.upper + folder, os.path.basename(place))
        os.makedirs(os.path.dirname(own), exist_ok=True)
        return own

    def copied(self, path: Any) -> str:
        """The place at which to change a file: a copy, made at the first change; its own place, if it is new."""
        source = self.found(path)
        if source.startswith(self.upper) or not os.path.exists(source):
            return source if os.path.lexists(source) else self.made(path)
        own = self.upper + source
        if os.path.isdir(source):
            os.makedirs(own, exist_ok=True)
        else:
            if not os.access(source, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))
            os.makedirs(os.path.dirname(own), exist_ok=True)
            # Under another name: the program has not opened its own file to write it anew.
            shutil.copy2(source, f"{own}{_COPY}")
            os.rename(f"{own}{_COPY}", own)
        return own

    def _refuse(self, number: int, path: Any, *, unless: bool) -> None:
        if not unless:
            raise OSError(number, os.strerror(number), os.fsdecode(path))

    def _hide(self, path: Any) -> None:
        place = self._place(path)
        if os.path.lexists(place) and not self._is_hidden(place):
            removed = self.upper + _whiteout(place)
            os.makedirs(os.path.dirname(removed), exist_ok=True)
            open(removed, "w").close()

    def open_file(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """``open``."""
        return open(self._opened(path, "x" in mode, "w" in mode, "a" in mode or "+" in mode), mode, *args, **kwargs)

    def open_descriptor(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """``os.open``."""
        made = flags & os.O_CREAT and flags & os.O_EXCL
        here = self._opened(path, bool(made), bool(flags & os.O_TRUNC), bool(flags & _WRITES))
        return os.open(here, flags, *args, **kwargs)

    def _opened(self, path: Any, made: bool, emptied: bool, changed: bool) -> str:
        here = self.found(path)
        if not (made or emptied or changed) or os.path.isdir(here) or _is_special(here):
            return here
        self._refuse(errno.EEXIST, path, unless=not (made and os.path.lexists(here)))
        if os.path.lexists(here):
            return self.copied(path)
        return self.made(path)

    def mkdir(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """``os.mkdir``."""
        self._refuse(errno.EEXIST, path, unless=not os.path.lexists(self.here(path)))
        os.mkdir(self.made(path), *args, **kwargs)

    def rmdir(self, path: Any) -> None:
        """``os.rmdir``."""
        here = self.here(path)
        self._refuse(errno.ENOTEMPTY, path, unless=not self.listdir(path))
        if here.startswith(self.upper):
            shutil.rmtree(here)
        self._hide(path)

    def remove(self, path: Any) -> None:
        """``os.remove``."""
        here = self.here(path)
        self._refuse(errno.EISDIR, path, unless=os.path.islink(here) or not os.path.isdir(here))
        if here.startswith(self.upper) or not os.path.lexists(here):
            os.remove(here)
        self._hide(path)

    def rename(self, source: Any, target: Any) -> None:
        """``os.rename``, and ``os.replace``, which is the same."""
        self._copy_all(source)
        here, there = self.here(source), self.here(target)
        if os.path.isdir(there) and not os.path.islink(there):
            self._refuse(errno.ENOTEMPTY if os.path.isdir(here) else errno.EISDIR, target, unless=os.path.isdir(here))
            self.rmdir(target)
        os.rename(here, self.made(target))
        self._hide(source)

    def _copy_all(self, path: Any) -> None:
        """Copy a file, or a folder with all that is in it."""
        here = self.copied(path) if not os.path.islink(self.here(path)) else self.here(path)
        if os.path.isdir(here) and not os.path.islink(here):
            for name in self.listdir(path):
                self._copy_all(os.path.join(path, name))

    def symlink(self, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        """``os.symlink``."""
        self._refuse(errno.EEXIST, target, unless=not os.path.lexists(self.here(target)))
        os.symlink(source, self.made(target), *args, **kwargs)

    def link(self, source: Any, target: Any, **kwargs: Any) -> None:
        """``os.link``, as a copy."""
        self._refuse(errno.EEXIST, target, unless=not os.path.lexists(self.here(target)))
        shutil.copy2(self.found(source), self.made(target))

    def listdir(self, path: Any = ".") -> list[Any]:
        """``os.listdir``."""
        here = self.found(path)
        names = set(os.listdir(here))
        if here.startswith(self.upper):
            place = here.removeprefix(self.upper)
            if not self._is_hidden(place):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    names |= {name for name in os.listdir(place) if not self._is_hidden(f"{place}/{name}")}
            names = {name for name in names if not name.startswith(WHITEOUT)}
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def scandir(self, path: Any = ".") -> Any:
        """``os.scandir``."""
        here = self.found(path)
        if not here.startswith(self.upper):
            return os.scandir(path)
        return _Entries(_Entry(os.path.join(path, name)) for name in self.listdir(path))


class _Entries:
    """The iterator that ``os.scandir`` returns."""

    def __init__(self, entries: Iterator[_Entry]) -> None:
        self._entries = iter(list(entries))

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is open."""

    close = __exit__


class _Entry:
    """An ``os.DirEntry``."""

    def __init__(self, path: Any) -> None:
        self.path = path
        self.name = os.path.basename(path)

    def __fspath__(self) -> Any:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The state of the file, or of the link."""
        return os.stat(self.path) if follow_symlinks else os.lstat(self.path)

    def inode(self) -> int:
        """The inode's number."""
        return os.lstat(self.path).st_ino

    def is_symlink(self) -> bool:
        """True for a link."""
        return os.path.islink(self.path)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """True for a folder."""
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """True for a regular file."""
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())


def _whiteout(place: str) -> str:
    return os.path.join(os.path.dirname(place), WHITEOUT + os.path.basename(place))


def _is_special(path: str) -> bool:
    """True if a path exists that is neither file nor folder, such as a pipe."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
