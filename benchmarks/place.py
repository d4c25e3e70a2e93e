"""Where benchmarks run: servers of our own with durable settings, a copy of the harness, the peers' environments."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent
HARNESS = Path(os.environ.get("BENCH_HARNESS", ROOT.parent / "shared" / "bench"))
ADDED = ROOT / "benchmarks" / "harness"
"""Our own peers, and what they read."""

sys.path.insert(0, str(ROOT / "tests"))
import servers  # noqa: E402 - the tests know how to find, install and start them

BEFORE = "before-"
"""How the names of peers begin that run on another checkout."""
PACKAGES = {
    "pgqueuer": ["pgqueuer[asyncpg,cli]", "uvloop"],
    "oban": ["oban", "psycopg[binary,pool]"],
    "chancy": ["chancy[cli]", "psycopg[binary,pool]"],
    "procrastinate": ["procrastinate", "psycopg[binary,pool]"],
    "huey": ["huey", "redis[hiredis]"],
    "taskiq": ["taskiq[uv,orjson]", "taskiq-redis", "taskiq-aio-pika", "hiredis"],
    "saq": ["saq[postgres,redis,hiredis]", "psycopg[binary,pool]", "uvloop"],
    "arq": ["arq", "hiredis", "uvloop"],
}
"""What to install for the peers of the harness that need an environment of their own."""
NEEDS_PYTHON_312 = {"oban"}


class Missing(Exception):
    """Something the benchmarks need is not there; the message says what to do."""


class Harness:
    """The shared harness: its programme and library as modules, and the peers it knows."""

    def __init__(self, folder: Path, *, patience: float, against: Path | None = None) -> None:
        sys.path.insert(0, str(folder))
        # Only now: these modules read their settings from the environment when they are imported.
        self.programme, self.library = importlib.import_module("bench"), importlib.import_module("benchlib")
        self.scratch = Path(self.library.WORKDIR)
        self._patience = patience
        self._specs = {**self.programme.load_peers(), **_our_peers(), **(_as_they_were(against) if against else {})}

    def peer(self, name: str, **environment: str) -> Any:
        """A peer, with further variables in its environment."""
        spec = self._specs[name]
        peer = self.programme.Peer(name, {**spec, "venv": _python(spec["venv"])}, "on")
        peer.env.update(environment)
        # As on a server: what is imported was compiled before.
        peer.env.pop("PYTHONDONTWRITEBYTECODE", None)
        # Before what was installed: this checkout's source, or that of another one.
        source = spec.get("source", ROOT / "src")
        peer.env["PYTHONPATH"] = os.pathsep.join([str(source), peer.env.get("PYTHONPATH", "")])
        return peer

    @contextmanager
    def measuring(self) -> Iterator[Callable[[], float]]:
        """Wait for a quiet machine, but not for long; afterwards, how many cores others kept busy meanwhile."""
        if self._patience > 0:
            self.programme.wait_quiet(patience=self._patience)
        with self.programme.Noise() as noise:
            yield lambda: float(noise.cores)

    def environment_of(self, name: str) -> str:
        return str(self._specs[name]["venv"])

    def is_in_process(self, name: str) -> bool:
        return bool(self._specs[name].get("inproc"))


def _our_peers() -> dict[str, Any]:
    ours = {"file": "peers/p_onward.py", "venv": sys.executable}
    return {
        "onward": ours,
        "onward-write": {**ours, "env": {"ONWARD_WORK": "write"}},
        "onward-chain": {**ours, "env": {"ONWARD_WORK": "chain"}},
        "onward-fan-in": {**ours, "env": {"ONWARD_WORK": "fan-in"}},
        "onward-limited": {**ours, "env": {"ONWARD_WORK": "limited"}},
        "onward-sqlite-limited": {**ours, "env": {"ONWARD_BACKEND": "sqlite", "ONWARD_WORK": "limited"}},
        "onward-sqlite": {**ours, "env": {"ONWARD_BACKEND": "sqlite"}},
        "onward-memory": {**ours, "env": {"ONWARD_BACKEND": "memory"}, "inproc": True},
        "onward-redis": {**ours, "env": {"ONWARD_BACKEND": "redis"}},
        "bare-write": {"file": "peers/p_bare_write.py", "venv": sys.executable},
    }


def _as_they_were(checkout: Path) -> dict[str, Any]:
    """Our peers again, on the source of another checkout."""
    ours = {name: spec for name, spec in _our_peers().items() if name.startswith("onward")}
    return {f"{BEFORE}{name}": {**spec, "source": checkout.resolve() / "src"} for name, spec in ours.items()}


@contextmanager
def prepared(*, patience: float = 0.0, against: Path | None = None) -> Iterator[Harness]:
    """Servers that run and a harness that uses them, until the end of the block."""
    if not (HARNESS / "bench.py").exists():
        raise Missing(f"no harness at {HARNESS}: set BENCH_HARNESS to the folder that holds bench.py")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onward-bench-")))
        os.environ["BENCH_WORKDIR"] = str(scratch / "run")
        stack.enter_context(_postgres())
        stack.enter_context(_redis())
        harness = Harness(_copied(scratch / "bench"), patience=patience, against=against)
        _check_role(harness)
        yield harness


def _copied(folder: Path) -> Path:
    """A copy, because the harness writes beside itself, and because our peers go among the others."""
    shutil.copytree(HARNESS, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    for path in ADDED.glob("*.*"):
        shutil.copy(path, folder / "peers")
    peers = json.loads((folder / "peers.json").read_text())
    (folder / "peers.json").write_text(json.dumps({**peers, **_our_peers()}))
    return folder


@contextmanager
def _postgres() -> Iterator[None]:
    """A private server that flushes what it commits, unless BENCH_PG_PORT names one."""
    if "BENCH_PG_PORT" in os.environ:
        yield
        return
    plain = servers.POSTGRES
    durable = replace(plain, command=lambda *where: [*plain.command(*where), "-c", "fsync=on"])
    with servers.private(durable) as instance:
        make_role = "create role bench superuser login password 'bench'"
        subprocess.run(["psql", "-XAtq", "-d", instance.dsn, "-c", make_role], check=True)
        os.environ["BENCH_PG_PORT"] = str(urlsplit(instance.dsn).port)
        os.environ["BENCH_PG_PIDFILE"] = str(instance.log.parent / "data" / "postmaster.pid")
        try:
            yield
        finally:
            del os.environ["BENCH_PG_PORT"], os.environ["BENCH_PG_PIDFILE"]


@contextmanager
def _redis() -> Iterator[None]:
    """A private server, because the harness empties it, unless BENCH_REDIS_PORT names one."""
    if "BENCH_REDIS_PORT" in os.environ:
        yield
        return
    with servers.private_redis() as instance:
        os.environ["BENCH_REDIS_PORT"] = str(urlsplit(instance.dsn).port)
        try:
            yield
        finally:
            del os.environ["BENCH_REDIS_PORT"]


def _check_role(harness: Harness) -> None:
    try:
        harness.library.psql("select 1")
    except RuntimeError as error:
        raise Missing(
            f"Postgres on port {harness.library.PG_PORT} does not let the benchmarks in: {str(error).strip()}\n"
            "Make their role: psql -c \"create role bench superuser login password 'bench'\""
        ) from error


def install(names: Sequence[str], harness: Harness) -> list[str]:
    """Environments for those of the peers that need one, kept between runs; the names that can run."""
    usable = []
    for name in names:
        wanted = harness.environment_of(name)
        if wanted not in PACKAGES or _installed(wanted):
            usable.append(name)
    return usable


def _installed(name: str) -> bool:
    folder = ROOT / ".venv" / "bench-peers" / name
    if (folder / "installed").exists():
        return True
    base = _base_python(name)
    if base is None:
        print(f"{name} is left out: it needs Python 3.12 (set BENCH_PYTHON312 to one)", file=sys.stderr)
        return False
    print(f"Installing {', '.join(PACKAGES[name])} …", file=sys.stderr)
    if base == sys.executable:
        venv.create(folder, with_pip=True, clear=True)
    else:
        subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES[name]], check=True)
    (folder / "installed").touch()
    return True


def _base_python(name: str) -> str | None:
    if name not in NEEDS_PYTHON_312 or sys.version_info >= (3, 12):
        return sys.executable
    for candidate in (os.environ.get("BENCH_PYTHON312"), "python3.12", "python3.13"):
        # Run, not only looked up: a pyenv shim may exist and still answer "command not found".
        if candidate and shutil.which(candidate):
            works = subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False).returncode == 0
            if works:
                return candidate
    return None


def _python(environment: str) -> str:
    """The bare drivers run in our own environment, on the very versions that we use."""
    if environment.startswith("/"):
        return environment
    if environment == "bare":
        return sys.executable
    return str(ROOT / ".venv" / "bench-peers" / environment / "bin" / "python")
