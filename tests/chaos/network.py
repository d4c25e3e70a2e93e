"""Networks of a test's own, in which connections can be cut: no packet leaves them, the machine's own are not touched.

A network has a loopback interface and nothing else. Who is started inside stays inside; a server there is reached from
outside by its Unix socket. It is gone, rules and all, when the last process in it has ended and the test has let go.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_NETWORK = 0x40000000  # CLONE_NEWNET
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Network:
    """A network namespace. Belongs to the thread that made it."""

    def __init__(self) -> None:
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _check(_libc.unshare(_NETWORK))
        try:
            self._here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        finally:
            _check(_libc.setns(self._home, _NETWORK))
        self._run("ip", "link", "set", "lo", "up")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Processes started and sockets opened in the block belong to this network. Do not await in it."""
        _check(_libc.setns(self._here, _NETWORK))
        try:
            yield
        finally:
            _check(_libc.setns(self._home, _NETWORK))

    def cut(self, ports: Iterable[int]) -> None:
        """Let every packet from or to these ports vanish."""
        for port in ports:
            for direction in ("--sport", "--dport"):
                self._run("iptables", "--wait", "-A", "INPUT", "-p", "tcp", direction, str(port), "-j", "DROP")

    def mend(self) -> None:
        """Let everything through again."""
        self._run("iptables", "--wait", "-F", "INPUT")

    def close(self) -> None:
        os.close(self._here)
        os.close(self._home)

    def _run(self, *command: str) -> None:
        with self.inside():
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
