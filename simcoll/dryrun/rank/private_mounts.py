"""Gives this process private copies of the writable file systems: overlays in a mount namespace of its own (Linux).

Files that the process and its children write go to *upper* folders; earlier files are read through, unchanged. The
kernel drops the mounts when the last of these processes ends, however it ends. Root needs a mount namespace, a user a
user namespace beside it (Linux 5.11 or later); many containers refuse both.

Root gets one overlay of ``/``, and one of each other writable mount. A user's namespace has no folders of others: no
overlay there can copy them to its upper folder. It must not show files below a mount point either. So a user gets
overlays of chosen folders, each as far up as the user owns it, and without mounts below it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import pathlib
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcoll.core.patches import Patches

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000
_CAPABILITY_VERSION_3 = 0x20080522

_NOT_FILES = frozenset(
    (
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "mqueue",
        "cgroup",
        "cgroup2",
        "nsfs",
        "securityfs",
        "debugfs",
        "tracefs",
        "bpf",
        "pstore",
        "autofs",
        "fusectl",
        "hugetlbfs",
        "binfmt_misc",
        "configfs",
        "efivarfs",
        "selinuxfs",
        "rpc_pipefs",
    )
)
_DEVICES = "/dev"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a mount point
_SOCKETS = "/proc/net/unix"
_MOST_SOCKETS = 100

_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")
"""Folders in which a user writes nothing."""


@dataclass(frozen=True, slots=True)
class FolderLayer:
    """An overlay of the folder ``place``; its changes are in the folder ``upper``."""

    place: str
    upper: str


@dataclass(frozen=True, slots=True)
class PrivateFiles:
    """The overlays of this process. ``raw`` is its base folder, which no overlay covers.

    ``view`` shows the base's ``snapshots``; writing there changes a private copy.
    """

    raw: str
    view: str
    layers: Sequence[FolderLayer]


@dataclass(frozen=True, slots=True)
class _Mount:
    place: str
    kind: str
    writable: bool

    @property
    def is_covered(self) -> bool:
        """True if programs write ordinary files there."""
        return self.writable and self.kind not in _NOT_FILES and os.path.isdir(self.place)


def mount_privately(base: Path, name: str, kept: Path, places: Sequence[str] | None) -> PrivateFiles:
    """Move this process into namespaces of its own, in which overlays cover its files, except the folder ``kept``.

    Without ``places`` they cover all files, which takes root's rights. The upper folders are in ``base/layers/name``,
    which must not exist yet; the process sees ``base`` empty. Raises OSError where the kernel refuses; the process may
    then be in another namespace, and should end.
    """
    folder = os.getcwd()
    own = base / "layers" / name
    own.mkdir(parents=True)
    (base / "snapshots").mkdir(exist_ok=True)
    _enter_namespaces(as_user=places is not None)
    raw, real = (f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_DIRECTORY)}" for path in (base, kept))
    overlays = _Overlays(f"{raw}/layers/{name}", as_user=places is not None)
    sockets = {place: os.open(place, os.O_PATH) for place in _sockets()}
    if places is None:
        _cover_root(_mounts(), overlays, str(own / "root"))
    else:
        _cover_each(places, _mounts(), overlays)
    for place, number in sockets.items():
        with contextlib.suppress(OSError):
            _mount(f"/proc/self/fd/{number}", place, None, _BIND)
        os.close(number)
    _mount(real, str(kept), None, _BIND)
    overlays.make_own_shared_memory()
    _mount("tmpfs", str(base), "tmpfs", options="size=1m,mode=700")
    view = base / "view"
    view.mkdir()
    overlays.cover(f"{raw}/snapshots", str(view), shown=False)
    os.chdir(folder)
    if places is not None:
        _drop_capabilities()
    return PrivateFiles(raw, str(view), overlays.made)


def let_folders_move(patches: Patches) -> None:
    """Let Python rename folders that were there before: an overlay refuses that as a move to another file system."""
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10
    for name in ("rename", "replace"):
        moving = _moving(getattr(os, name))
        patches.replace(os, name, moving)
        patches.replace(accessor, name, staticmethod(moving))


def _moving(rename: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(rename)
    def move(source: Any, target: Any, **folders: Any) -> None:
        try:
            rename(source, target, **folders)
        except OSError as error:
            if error.errno != errno.EXDEV or folders or not _is_on_one_overlay(source, target):
                raise
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(target)
            shutil.copytree(source, target, symlinks=True)
            shutil.rmtree(source)

    return move


def _is_on_one_overlay(folder: Any, target: Any) -> bool:
    """True if a folder and its target are on one file system, as the program sees it."""
    beside = os.path.dirname(os.path.abspath(os.fsdecode(target)))
    return stat.S_ISDIR(os.lstat(folder).st_mode) and os.stat(folder).st_dev == os.stat(beside).st_dev


def writable_places(named: Iterable[str]) -> list[str]:
    """The folders that a user's programs may write to: those ``named``, and the user's own at the top of mounts."""
    user, login = os.getuid(), os.path.basename(os.path.expanduser("~"))
    tops = ["/", *(mount.place for mount in _mounts() if mount.is_covered)]
    found = [*named, *tops, *(os.path.join(top, login) for top in tops), *_folders_in("/")]
    return sorted({_own_top(place, user) for place in map(os.path.realpath, found) if _is_written(place)})


def _is_written(place: str) -> bool:
    system = any(_is_below(place, one) for one in _SYSTEM)
    return place != "/" and not system and os.path.isdir(place) and os.access(place, os.W_OK)


def _own_top(place: str, user: int) -> str:
    """The topmost folder from which on the user owns all folders down to a place; the place itself if there is none."""
    while (above := os.path.dirname(place)) != "/" and os.stat(above).st_uid == os.stat(place).st_uid == user:
        place = above
    return place


def _folders_in(place: str) -> list[str]:
    if any(_is_below(place, one) for one in _SYSTEM):
        return []
    try:
        with os.scandir(place) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


class _Overlays:
    """The overlays that are mounted, and where their upper folders are."""

    def __init__(self, folder: str, *, as_user: bool) -> None:
        self._folder = folder
        self._options = ",userxattr" if as_user else ""
        self._count = 0
        self.made: list[FolderLayer] = []

    def cover(self, lower: str, place: str, *, shown: bool = True, called: str = "") -> None:
        """Mount an overlay of ``lower`` at ``place``; ``shown`` adds it to ``made``, as that of ``called``."""
        self._count += 1
        upper, work = (f"{self._folder}/{self._count}.{kind}" for kind in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        there = os.stat(lower)
        os.chmod(upper, there.st_mode & 0o7777)
        with contextlib.suppress(OSError):  # a user may own less than root
            os.chown(upper, there.st_uid, there.st_gid)
        options = f"lowerdir={_escaped(lower)},upperdir={upper},workdir={work},volatile{self._options}"
        _mount("overlay", place, "overlay", options=options)
        if shown:
            self.made.append(FolderLayer(called or lower, upper))

    def make_own_shared_memory(self) -> None:
        """Mount an empty ``/dev/shm``, whose files are all changes; not where it has folders, with data to be read."""
        with contextlib.suppress(OSError):
            if not any(os.path.isdir(entry) for entry in os.scandir(_SHARED_MEMORY)):
                _mount("tmpfs", _SHARED_MEMORY, "tmpfs", options="mode=1777")
                self.made.append(FolderLayer(_SHARED_MEMORY, _SHARED_MEMORY))


def _cover_root(mounts: Sequence[_Mount], overlays: _Overlays, root: str) -> None:
    """Make an overlay of all files the root folder; other mounts are bound below it, or covered."""
    os.mkdir(root)
    overlays.cover("/", root)
    bound: list[str] = []
    for mount in mounts:
        if mount.place == "/" or any(_is_below(mount.place, one) for one in bound):
            continue
        target = root + mount.place
        if mount.is_covered and not _is_below(mount.place, _DEVICES):
            overlays.cover(mount.place, target)
        else:
            bound.append(mount.place)
            with contextlib.suppress(OSError):  # a mount that another one hides
                _mount(mount.place, target, None, _BIND | _REC)
    os.chroot(root)


def _cover_each(places: Sequence[str], mounts: Sequence[_Mount], overlays: _Overlays) -> None:
    """Cover these folders; where one has mounts below it, those of its folders that have none."""
    numbers: dict[str, int] = {}
    while places:
        above = [place for place in places if any(_is_below(one.place, place) and one.place != place for one in mounts)]
        for place in places:
            if place not in above and place not in numbers:
                with contextlib.suppress(OSError):
                    numbers[place] = os.open(place, os.O_PATH)
        places = [
            folder for place in above for folder in _folders_in(place) if all(one.place != folder for one in mounts)
        ]
    for place, number in sorted(numbers.items()):
        with contextlib.suppress(OSError):  # a file system that cannot be covered; what matters is checked
            overlays.cover(f"/proc/self/fd/{number}", place, called=place)
        os.close(number)


def _sockets() -> list[str]:
    """The sockets that processes listen at: a connection to the copy in an overlay would be refused."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path(_SOCKETS).read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            place = line.split(" ")[-1]
            if place.startswith("/") and os.path.exists(place):
                found.add(place)
    return sorted(found)[:_MOST_SOCKETS]


def _enter_namespaces(*, as_user: bool) -> None:
    user, group = os.getuid(), os.getgid()
    _call("unshare", _NEW_MOUNTS | (_NEW_USER if as_user else 0))
    if as_user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    _mount("none", "/", None, _REC | _PRIVATE)


def _drop_capabilities() -> None:
    """Give up the rights that the user namespace has granted: a program must not read what its user may not read."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def _mounts() -> list[_Mount]:
    """The mounts of this process, in the order in which they were made (proc(5))."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        own, _, of_system = line.partition(" - ")
        words, kind = own.split(" "), of_system.split(" ")[0]
        found.append(_Mount(_unescaped(words[4]), kind, "rw" in words[5].split(",")))
    return found


def _unescaped(place: str) -> str:
    for octal in ("040", "011", "012", "134"):
        place = place.replace(f"\\{octal}", chr(int(octal, 8)))
    return place


def _escaped(place: str) -> str:
    for character in "\\,:":
        place = place.replace(character, f"\\{character}")
    return place


def _is_below(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")


def _mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    words = (source, target, kind)
    _call("mount", *(word and os.fsencode(word) for word in words), ctypes.c_ulong(flags), os.fsencode(options))


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
