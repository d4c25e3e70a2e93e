"""Whether a SQLite file is as jobs need it, and lies where it should."""

from collections.abc import Iterator

from onward.client.doctor.words import named, size, wrong
from onward.operating import Finding
from onward.state.facts import FileFacts

_OVER_THE_NET = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
    "fuse.s3fs",
)
_MUCH_WAL = 256 << 20
_MUCH_FREE = 256 << 20
_LITTLE_DISK = 256 << 20


def of_file(file: FileFacts) -> Iterator[Finding]:
    """All that can be seen of it."""
    if file.journal_mode not in ("wal", "memory"):
        words = f"the file is written in journal mode {file.journal_mode}: who reads and who writes wait for each other"
        advice = "PRAGMA journal_mode = WAL; if it does not stay so, the file system cannot share memory"
        yield wrong("file", "error", words, advice)
    if file.filesystem in _OVER_THE_NET:
        words = f"the file lies on a network file system ({file.filesystem}), whose locks SQLite cannot rely on"
        yield wrong("file", "error", words, "move it to a local disk, or use Postgres")
    if not file.is_writable:
        advice = "the file and its folder must be writable: SQLite keeps two files beside it"
        yield wrong("file", "error", f"{file.path} cannot be written by this user", advice)
    if file.readable_by_others:
        advice = f"chmod o-r {file.path}, and what lies beside it"
        yield wrong("file", "warning", "everybody on this machine may read the file, payloads and all", advice)
    if file.synchronous == 0:
        advice = "use synchronous NORMAL or FULL: when the machine dies the file may be damaged"
        yield wrong("file", "warning", "nothing is written through to the disk (synchronous OFF)", advice)
    if file.wal > _MUCH_WAL:
        words = f"{size(file.wal)} of commits have not been moved into the file"
        advice = "somebody reads for long: end that; then PRAGMA wal_checkpoint(TRUNCATE)"
        yield wrong("file", "warning", words, advice)
    if file.free > _MUCH_FREE and file.free > file.bytes / 2:
        words = f"{size(file.free)} of {size(file.bytes)} are free within the file"
        yield wrong("file", "warning", words, "VACUUM while workers are stopped, if you need the space")
    if file.disk_free < max(_LITTLE_DISK, file.disk_total / 100):
        words = f"the disk has {size(file.disk_free)} left of {size(file.disk_total)}"
        yield wrong("disk", "error", words, "make room: nothing can be committed on a full disk")
    if file.damage:
        advice = "stop all workers, and restore a backup, or try `sqlite3 FILE .recover`"
        yield wrong("file", "error", f"the file is damaged: {named(file.damage)}", advice)
