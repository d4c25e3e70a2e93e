"""What Windows lacks, taken away, as far as one can: every module is imported and two jobs are run."""

import asyncio
import asyncio.unix_events
import importlib
import os
import pkgutil
import signal
import sys

LACKING = {
    os: ("fork", "killpg", "register_at_fork", "memfd_create", "pidfd_open", "forkpty", "waitid", "setsid", "getuid",
         "geteuid", "pipe2"),
    signal: ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "setitimer", "pthread_sigmask"),
    asyncio: ("open_unix_connection", "start_unix_server"),
}  # fmt: skip


def take_away() -> None:
    # Libraries that look for these when they are imported are not what is tried here.
    for name in ("tempfile", "subprocess", "multiprocessing", "concurrent.futures", "sqlite3", "random"):
        importlib.import_module(name)
    for module, names in LACKING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)


def not_importable() -> list[str]:
    import onward

    found = []
    for module in pkgutil.walk_packages(onward.__path__, "onward."):
        if ".conformance" not in module.name and not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except BaseException as error:  # noqa: BLE001 - it is shown
                found.append(f"{module.name}: {error!r}")
    return found


async def run_two_jobs() -> list[str]:
    from onward import Attempt, Onward, job

    @job("greet")
    async def greet(attempt: Attempt[str]) -> str:
        return f"hello {attempt.input}"

    @job("plain")
    def plain(attempt: Attempt[str]) -> str:
        return f"sync {attempt.input}"

    async with Onward("memory://", jobs=[greet, plain]) as app, app.worker(guardian="thread"):
        return [await (await app.start(kind, "w")).wait() for kind in (greet, plain)]


if __name__ == "__main__":
    take_away()
    sys.stdout.write(f"modules that do not import: {', '.join(not_importable()) or 'none'}\n")
    sys.stdout.write(" ".join(asyncio.run(run_two_jobs())) + "\n")
