"""Private folders for `memory://`, and what is left of them when a process was killed."""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"onward-memory-(?P<space>\d+)-(?P<process>\d+)-(?P<began>\d+)-\w+\Z")


def make_folder() -> str:
    """A new folder for this process alone, in memory where there is such a place; what others left behind goes."""
    import tempfile  # for memory:// only

    fast = "/dev/shm"
    place = fast if os.access(fast, os.W_OK) else tempfile.gettempdir()
    sweep(Path(place))
    process = os.getpid()
    return tempfile.mkdtemp(prefix=f"onward-memory-{_space()}-{process}-{_began(process)}-", dir=place)


def sweep(place: Path) -> None:
    """Remove the folders of processes that are gone: of this user, and of those we would see if they were there."""
    import shutil

    if os.name != "posix":
        return  # where a process cannot be asked for without harm
    with suppress(OSError):
        for folder in place.glob("onward-memory-*"):
            name = _NAME.match(folder.name)
            if name and int(name["space"]) == _space() and _is_ours(folder):
                process = int(name["process"])
                if not _is_alive(process) or _began(process) != int(name["began"]):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    with suppress(OSError):
        found = folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return False


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def _space() -> int:
    """In which process numbers mean what they mean here: a container's differ from those of its host."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _began(process: int) -> int:
    """When a process began, in ticks since the machine did; 0 where there is no telling."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
