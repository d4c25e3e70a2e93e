"""Finds or starts the servers that the tests talk to, so that `make test` works on a bare machine.

For each server, the first of these that is there:

1. the address in its environment variable (`ONWARD_TEST_POSTGRES`, `…_PGBOUNCER`, `…_REDIS`, `…_NATS`, `…_SQS`,
   `…_RABBITMQ`), used as it is;
2. its usual address on this machine, if it answers there and lets us in;
3. a private instance, started from an installed program in a scratch directory on a free port;
4. the same after `apt-get install`, when we are root; otherwise an error that says what to install.

A test that stops, freezes or kills its server asks for `private_postgres()` and so never hurts anyone else's;
`private_redis_cluster()` is always private, because nobody has one running.
What is started here is stopped here. Another server is one more `Server(...)`: see POSTGRES.
Node.js, for BullMQ's other side, is found or installed likewise, with packages of npm's in a cache of the user's.

Standard library only: this runs before anything else is known to work.
"""

import atexit
import fcntl
import os
import pwd
import random
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

STARTUP_SECONDS = 60.0
STOP_SECONDS = 30.0


class ServerMissing(RuntimeError):
    """A server cannot be had here; the message says what to install or set."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """What has to be known of a kind of server to find it, install it and run a private one."""

    name: str
    variable: str
    """The environment variable that holds an address to use instead."""
    default: str | None
    """Where it usually listens on a developer's machine; None when ours needs settings of its own."""
    program: str
    package: str
    """The Debian package that brings the program."""
    folders: tuple[str, ...] = ("/usr/sbin", "/usr/local/sbin")
    """Where to look for the program besides PATH; patterns, the highest version wins."""
    dsn: Callable[[int], str]
    command: Callable[[Path, Path, int], list[str]]
    """(program, scratch directory, port) → the command of a server that stays in the foreground."""
    prepare: Callable[[Path, Path, int], None] = lambda program, scratch, port: None
    """Called once with the same arguments before the first start: make the files it needs."""
    answers: Callable[[str], bool]
    """Whether a server at this address lets us in."""
    signals: Mapping[str, signal.Signals] = field(
        default_factory=lambda: {"fast": signal.SIGTERM, "kill": signal.SIGKILL}
    )
    """How it stops: the modes of `Instance.stop`."""
    port: Callable[[], int] = lambda: _free_port()
    """Where a private one listens."""
    runs_as_us: bool = False
    """Whether it may run as root: others refuse, but a program of the virtual environment may be for us alone."""


class Instance:
    """A server process of our own, which a test may stop and start as it likes; the port and the data stay."""

    def __init__(self, server: Server, program: Path, scratch: Path, port: int) -> None:
        self.server = server
        self.dsn = server.dsn(port)
        self.log = scratch / "log"
        self._command = server.command(program, scratch, port)
        self._scratch = scratch
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._killed = False

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.server.name} is stopped")
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        if self._process is not None:
            if self._process.poll() is None:
                raise RuntimeError(f"{self.server.name} is already running")
            self._killed = True  # by the test, by way of pid
        deadline = time.monotonic() + STARTUP_SECONDS
        # Children of a killed server may live for a moment and keep the next one from starting.
        tries = 10 if self._killed else 1
        self._process = self._spawn()
        while time.monotonic() < deadline:
            if self._process.poll() is None:
                if self.server.answers(self.dsn):
                    self._killed = False
                    return
                time.sleep(0.05)
            else:
                tries -= 1
                if tries == 0:
                    break
                time.sleep(0.3)
                self._process = self._spawn()
        self.stop("kill")
        raise ServerMissing(f"{self.server.name} does not start. The end of its log:\n{self._end_of_log()}")

    def stop(self, mode: str = "fast") -> None:
        """Stop it and wait until it is gone; nothing happens if it is stopped already."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            self._killed = self.server.signals[mode] == signal.SIGKILL
            process.send_signal(self.server.signals[mode])
            process.send_signal(signal.SIGCONT)  # a test may have frozen it
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._killed = True
            process.kill()
            process.wait()
        self._dismiss_guard()

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal reaches the tests, and they stop the server in order.
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                cwd=self._scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._user(),
            )
        self._dismiss_guard()
        self._guard = _guard(process.pid, self._scratch, self._user())
        return process

    def _user(self) -> dict[str, Any]:
        return {} if self.server.runs_as_us else _unprivileged()

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.communicate()

    def _end_of_log(self) -> str:
        return "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-20:])


@contextmanager
def found_or_started(server: Server) -> Iterator[str]:
    """The address of such a server: given, found, or a private one that lives as long as the `with`."""
    if given := os.environ.get(server.variable):
        yield given
    elif server.default and server.answers(server.default):
        yield server.default
    else:
        with private(server) as instance:
            yield instance.dsn


@contextmanager
def private(server: Server) -> Iterator[Instance]:
    """A new instance that nobody else uses, whatever else runs on this machine."""
    program = find(server)
    scratch = Path(tempfile.mkdtemp(prefix=f"onward-{server.program}-"))
    port = server.port()
    try:
        _hand_over(scratch)
        server.prepare(program, scratch, port)
        instance = Instance(server, program, scratch, port)
        atexit.register(instance.stop)  # for a `with` that is never left
        try:
            _say(f"Starting a private {server.name} on port {port} …")
            instance.start()
            yield instance
        finally:
            instance.stop()
            atexit.unregister(instance.stop)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def find(server: Server) -> Path:
    """Its program, installed if need be."""
    if program := installed(server):
        return program
    hint = f"Install it (Debian, Ubuntu: sudo apt-get install {server.package}) or set {server.variable} to an address."
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServerMissing(f"The tests need {server.name}, and it is not on this machine. {hint}")
    with _one_at_a_time():
        if program := installed(server):
            return program
        install(server.package)
    if program := installed(server):
        return program
    raise ServerMissing(f"apt-get installed {server.package}, but there is no program {server.program!r}. {hint}")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Tests run side by side, and apt-get only waits for some of its own locks."""
    with open(Path(tempfile.gettempdir()) / "onward-tests-install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(*packages: str) -> None:
    """Install packages of Debian's; only root can."""
    _say(f"Installing {' and '.join(packages)} with apt-get …")
    _apt_get("update")
    _apt_get("install", "--yes", "--no-install-recommends", *packages)


def installed(server: Server) -> Path | None:
    if found := shutil.which(server.program):
        return Path(found).resolve()  # initdb lies beside the real postgres
    programs = [Path(name) for folder in server.folders for name in glob(f"{folder}/{server.program}")]
    return max(programs, key=lambda path: _numbers(str(path)), default=None)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _apt_get(*arguments: str) -> None:
    # RUNLEVEL=1: the package must not start a server of its own; we start ours, and on another port.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    done = subprocess.run(
        ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise ServerMissing(f"apt-get {' '.join(arguments)} failed:\n{done.stdout[-2000:]}")


def _guard(pid: int, scratch: Path, user: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """A shell that clears up if the tests are killed, when neither `with` nor atexit runs: its input ends with us."""
    script = 'read _; kill -QUIT "$0"; kill -CONT "$0"; sleep 1; rm -rf "$1"'
    return subprocess.Popen(
        ["sh", "-c", script, str(pid), str(scratch)],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **user,
    )


def _unprivileged() -> dict[str, Any]:
    """Popen arguments that give up root, because database servers refuse to run as root."""
    user = _server_user()
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _server_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _hand_over(path: Path) -> None:
    if user := _server_user():
        os.chown(path, user.pw_uid, user.pw_gid)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# --- PostgreSQL ---------------------------------------------------------------------------------------------------


def _postgres_lets_us_in(dsn: str) -> bool:
    """Log in by hand: an open port may be another program, a server still starting, or one that wants a password."""
    url = urlsplit(dsn)
    fields = {"user": url.username or "postgres", "database": url.path.lstrip("/") or "postgres"}
    body = b"".join(f"{key}\0{value}\0".encode() for key, value in fields.items()) + b"\0"
    try:
        with socket.create_connection((url.hostname or "127.0.0.1", url.port or 5432), timeout=5) as connection:
            connection.sendall(struct.pack("!ii", len(body) + 8, 3 << 16) + body)
            with connection.makefile("rb") as answer:
                kind, _length, code = struct.unpack("!cii", answer.read(9))
            connection.sendall(b"X\0\0\0\4")
    except (OSError, struct.error):
        return False
    return bool(kind == b"R" and code == 0)


def _initdb(program: Path, scratch: Path, port: int) -> None:
    arguments = ["-D", str(scratch / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
    made = subprocess.run(
        [program.with_name("initdb"), *arguments],
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **_unprivileged(),
    )
    if made.returncode != 0:
        raise ServerMissing(f"initdb failed:\n{made.stdout[-2000:]}")


def _postgres_command(program: Path, scratch: Path, port: int) -> list[str]:
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": scratch,
        "max_connections": 200,
        # Safe against a killed server, which is what tests do; only a killed machine would lose data.
        "fsync": "off",
    }
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    return [str(program), "-D", str(scratch / "data"), *options]


POSTGRES = Server(
    name="PostgreSQL",
    variable="ONWARD_TEST_POSTGRES",
    default="postgresql://postgres@127.0.0.1:5432/postgres",
    program="postgres",
    package="postgresql",
    folders=("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin"),
    dsn=lambda port: f"postgresql://postgres@127.0.0.1:{port}/postgres",
    prepare=_initdb,
    command=_postgres_command,
    answers=_postgres_lets_us_in,
    # smart waits for clients to leave, fast ends their sessions, immediate and kill make it recover at the next start.
    signals={
        "smart": signal.SIGTERM,
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
        "kill": signal.SIGKILL,
    },
)


def postgres() -> AbstractContextManager[str]:
    """The DSN of a role that may create databases."""
    return found_or_started(POSTGRES)


def private_postgres(**settings: object) -> AbstractContextManager[Instance]:
    """For tests that stop, freeze or kill the server, or have settings of their own: `log_statement="all"`."""
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return private(replace(POSTGRES, command=lambda *where: [*_postgres_command(*where), *options]))


def private_postgres_with_tls(certificate: Path, key: Path) -> AbstractContextManager[Instance]:
    """One that speaks TLS with those who ask for it, and lets in whoever says a name."""

    def prepare(program: Path, scratch: Path, port: int) -> None:
        _initdb(program, scratch, port)
        for name, source in (("server.crt", certificate), ("server.key", key)):
            copy = Path(shutil.copy(source, scratch / "data" / name))
            copy.chmod(0o600)  # of a key that others could read it would make no use
            _hand_over(copy)

    command = POSTGRES.command
    return private(replace(POSTGRES, prepare=prepare, command=lambda *where: [*command(*where), "-c", "ssl=on"]))


def standby_of(primary: Instance) -> AbstractContextManager[Instance]:
    """A private server that follows another one, until `SELECT pg_promote()`."""
    return private(replace(POSTGRES, prepare=lambda *where: _base_backup(primary, *where)))


def _base_backup(primary: Instance, program: Path, scratch: Path, port: int) -> None:
    arguments = ["-d", primary.dsn, "-D", str(scratch / "data"), "-R", "-X", "stream", "-c", "fast", "--no-sync"]
    made = subprocess.run(
        [program.with_name("pg_basebackup"), *arguments],
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **_unprivileged(),
    )
    if made.returncode != 0:
        raise ServerMissing(f"pg_basebackup failed:\n{made.stdout[-2000:]}")


# --- PgBouncer ----------------------------------------------------------------------------------------------------


def pgbouncer(postgres_dsn: str) -> AbstractContextManager[str]:
    """The DSN of a PgBouncer in front of every database of that PostgreSQL, pooling by transaction."""
    return found_or_started(_pgbouncer_for(postgres_dsn))


def private_pgbouncer(postgres_dsn: str) -> AbstractContextManager[Instance]:
    """For tests that stop, freeze or kill the pooler."""
    return private(_pgbouncer_for(postgres_dsn))


def _pgbouncer_for(postgres_dsn: str) -> Server:
    database = urlsplit(postgres_dsn).path.lstrip("/") or "postgres"
    return Server(
        name="PgBouncer",
        variable="ONWARD_TEST_PGBOUNCER",
        default=None,  # one that runs already knows nothing of our databases
        program="pgbouncer",
        package="pgbouncer",
        dsn=lambda port: f"postgresql://postgres@127.0.0.1:{port}/{database}",
        prepare=lambda program, scratch, port: _configure_pgbouncer(program, scratch, port, postgres_dsn),
        command=lambda program, scratch, port: [str(program), str(scratch / "pgbouncer.ini")],
        answers=_postgres_lets_us_in,
        # From 1.23 on SIGTERM waits for clients to leave.
        signals={"fast": signal.SIGQUIT, "smart": signal.SIGINT, "kill": signal.SIGKILL},
    )


def _configure_pgbouncer(program: Path, scratch: Path, port: int, postgres_dsn: str) -> None:
    url = urlsplit(postgres_dsn)
    target = {
        "host": url.hostname or parse_qs(url.query).get("host", ["127.0.0.1"])[0],
        "port": str(url.port or 5432),
        "user": unquote(url.username or "postgres"),
        "password": unquote(url.password or ""),
    }
    settings: dict[str, str | int] = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "max_client_conn": 1000,
        "default_pool_size": 20,
        "ignore_startup_parameters": "extra_float_digits",
    }
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    if _numbers(said.split()[1]) >= [1, 21]:
        # Off, as it always was before 1.21: what works without it works with it.
        settings["max_prepared_statements"] = 0
    quoted = " ".join("{}='{}'".format(key, value.replace("'", "''")) for key, value in target.items() if value)
    lines = ["[databases]", f"* = {quoted}", "[pgbouncer]", *(f"{key} = {value}" for key, value in settings.items())]
    file = scratch / "pgbouncer.ini"
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)  # it may hold a password
    _hand_over(file)


# --- Redis and NATS -----------------------------------------------------------------------------------------------


def _says(dsn: str, question: bytes, answer: bytes) -> bool:
    """Whether whoever listens there begins its answer like this."""
    url = urlsplit(dsn)
    try:
        with ExitStack() as stack:
            place = url.hostname or "127.0.0.1", url.port or 0
            connection = stack.enter_context(socket.create_connection(place, timeout=5))
            if url.scheme == "https":  # whatever its certificate is worth
                connection = stack.enter_context(ssl._create_unverified_context().wrap_socket(connection))
            connection.sendall(question)
            said = stack.enter_context(connection.makefile("rb"))
            return said.read(len(answer)) == answer
    except OSError:
        return False


def _redis_command(program: Path, scratch: Path, port: int) -> list[str]:
    return [
        # Not `program`: Debian's redis-server is a link to a program that does what its name says.
        *(str(program.with_name("redis-server")), "--bind", "127.0.0.1", "--port", str(port)),
        *("--dir", str(scratch), "--save", "", "--appendonly", "no"),
    ]


REDIS = Server(
    name="Redis",
    variable="ONWARD_TEST_REDIS",
    default="redis://127.0.0.1:6379",
    program="redis-server",
    package="redis-server",
    dsn=lambda port: f"redis://127.0.0.1:{port}",
    command=_redis_command,
    answers=lambda dsn: _says(dsn, b"PING\r\n", b"+PONG"),
)

NATS = Server(
    name="NATS",
    variable="ONWARD_TEST_NATS",
    default="nats://127.0.0.1:4222",
    program="nats-server",
    package="nats-server",
    dsn=lambda port: f"nats://127.0.0.1:{port}",
    command=lambda program, scratch, port: [
        *(str(program), "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", str(scratch)),
    ],
    answers=lambda dsn: _says(dsn, b"", b"INFO {"),
)


def redis() -> AbstractContextManager[str]:
    """The address of a Redis; tests use channels of their own."""
    return found_or_started(REDIS)


def private_redis(**settings: str) -> AbstractContextManager[Instance]:
    """For tests that stop, freeze, kill or fill the server: `private_redis(appendonly="yes", appendfsync="always")`."""
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    port = _free_port_with_bus if "cluster_enabled" in settings else REDIS.port
    return private(replace(REDIS, port=port, command=lambda *where: [*_redis_command(*where), *options]))


@contextmanager
def private_redis_cluster(*, replicas: bool = False) -> Iterator[list[Instance]]:
    """Three masters of a new Redis Cluster that owns every slot; any one's address will do to enter it.

    With `replicas` each has one, and they come after the masters.
    """
    options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
    node = replace(REDIS, port=_free_port_with_bus, command=lambda *where: [*_redis_command(*where), *options])
    with ExitStack() as stack:
        nodes = [stack.enter_context(private(node)) for _ in range(6 if replicas else 3)]
        addresses = [urlsplit(one.dsn).netloc for one in nodes]
        more = ["--cluster-replicas", "1"] if replicas else []
        subprocess.run(
            [find(REDIS).with_name("redis-cli"), "--cluster", "create", *addresses, *more, "--cluster-yes"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=STARTUP_SECONDS,
            check=True,
        )
        deadline = time.monotonic() + STARTUP_SECONDS
        while not all(_cluster_is_whole(one.dsn, len(nodes)) for one in nodes):
            if time.monotonic() > deadline:
                raise ServerMissing("the Redis Cluster does not come up")
            time.sleep(0.05)
        yield nodes


def _cluster_is_whole(dsn: str, nodes: int) -> bool:
    url = urlsplit(dsn)
    with socket.create_connection((url.hostname or "127.0.0.1", url.port or 0), timeout=5) as connection:
        connection.sendall(b"CLUSTER INFO\r\n")
        said = connection.recv(4096)
    return b"cluster_state:ok" in said and b"cluster_known_nodes:%d" % nodes in said


def copied_to_replica(nodes: list[Instance], key: str) -> Instance:
    """The node of a Redis Cluster with replicas where that key belongs, once its replica has all that it has."""
    # WAIT waits for what was written on its own connection, and so for what was before that.
    question, deadline = f"SET {key}:copied 1\r\nWAIT 1 1000\r\n".encode(), time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline:
        for node in nodes:
            if _says(node.dsn, question, b"+OK\r\n:1\r\n"):
                return node
    raise ServerMissing(f"no node has a replica with {key}")


def _free_port_with_bus() -> int:
    """A port whose neighbour 10,000 further on, where the nodes of a cluster talk to each other, is free too."""
    while True:
        port = random.randrange(10_000, 22_000)
        with suppress(OSError), socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port


def nats() -> AbstractContextManager[str]:
    """The address of a NATS server; tests use subjects of their own."""
    return found_or_started(NATS)


def private_nats(*options: str) -> AbstractContextManager[Instance]:
    """For tests that stop, freeze or kill the server, or give it options: `private_nats("--user", "ada", …)`."""
    return private(replace(NATS, command=lambda *where: [*NATS.command(*where), *options]))


@contextmanager
def private_nats_cluster() -> Iterator[list[Instance]]:
    """Three servers that keep streams together; any one's address will do to enter."""
    routes = [_free_port() for _ in range(3)]
    with ExitStack() as stack:
        nodes = []
        for number, route in enumerate(routes):
            others = ",".join(f"nats://127.0.0.1:{other}" for other in routes)
            options = [
                *("--cluster_name", "onward", "--server_name", f"node-{number}"),
                *("--cluster", f"nats://127.0.0.1:{route}", "--routes", others),
            ]
            nodes.append(stack.enter_context(private_nats(*options)))
        yield nodes


# --- RabbitMQ -----------------------------------------------------------------------------------------------------


def _rabbitmq_script(program: Path) -> Path:
    """Debian's programs on PATH insist on a user of their own; the scripts behind them do not."""
    scripts = glob(f"/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/{program.name}")
    return Path(max(scripts, default=program))


def _rabbitmq_command(program: Path, scratch: Path, port: int) -> list[str]:
    settings = {
        "HOME": scratch,  # where Erlang keeps its cookie
        "RABBITMQ_NODENAME": f"onward-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": _free_port(),
        "RABBITMQ_BASE": scratch,
        "RABBITMQ_MNESIA_BASE": scratch / "data",
        "RABBITMQ_LOG_BASE": scratch,
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": scratch / "rabbitmq.conf",
        "RABBITMQ_ADVANCED_CONFIG_FILE": scratch / "advanced.config",
        "RABBITMQ_CONF_ENV_FILE": scratch / "environment",
        "RABBITMQ_ENABLED_PLUGINS_FILE": scratch / "plugins",
        "RABBITMQ_PID_FILE": scratch / "pid",
        # The script then becomes the server instead of starting it, and our signals reach it.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
    script = _rabbitmq_script(program.with_name("rabbitmq-server"))
    return ["env", *(f"{key}={value}" for key, value in settings.items()), str(script)]


RABBITMQ = Server(
    name="RabbitMQ",
    variable="ONWARD_TEST_RABBITMQ",
    default="amqp://guest:guest@127.0.0.1:5672/",
    program="rabbitmq-server",
    package="rabbitmq-server",
    dsn=lambda port: f"amqp://guest:guest@127.0.0.1:{port}/",
    command=_rabbitmq_command,
    # It listens once it is ready, and begins with a method on channel 0.
    answers=lambda dsn: _says(dsn, b"AMQP\0\0\x09\x01", b"\1\0\0"),
)


def rabbitmq() -> AbstractContextManager[str]:
    """The address of a RabbitMQ; tests use queues of their own."""
    return found_or_started(RABBITMQ)


def private_rabbitmq(configuration: str = "", advanced: str = "") -> AbstractContextManager[Instance]:
    """For tests that stop, freeze or kill the server, or configure it: lines of rabbitmq.conf and advanced.config."""

    def prepare(program: Path, scratch: Path, port: int) -> None:
        for name, text in (("rabbitmq.conf", configuration), ("advanced.config", advanced)):
            if text:
                (scratch / name).write_text(f"{text}\n")

    return private(replace(RABBITMQ, prepare=prepare))


@contextmanager
def private_rabbitmq_cluster() -> Iterator[list[Instance]]:
    """Three nodes that keep quorum queues together; any one's address will do to enter."""

    def prepare(program: Path, scratch: Path, port: int) -> None:
        cookie = scratch / ".erlang.cookie"  # what nodes know each other by
        cookie.write_text("onward")
        cookie.chmod(0o400)
        _hand_over(cookie)

    with ExitStack() as stack:
        nodes = [stack.enter_context(private(replace(RABBITMQ, prepare=prepare))) for _ in range(3)]
        for node in nodes[1:]:
            for told in (["stop_app"], ["join_cluster", _rabbitmq_node(nodes[0])], ["start_app"]):
                rabbitmqctl(node, *told)
        yield nodes


def _rabbitmq_node(server: Instance) -> str:
    return f"onward-{urlsplit(server.dsn).port}@localhost"


def rabbitmqctl(server: Instance, *arguments: str) -> None:
    """Tell a private RabbitMQ something."""
    node = _rabbitmq_node(server)
    script = _rabbitmq_script(find(RABBITMQ).with_name("rabbitmqctl"))
    environment = {**os.environ, "HOME": str(server.log.parent)}
    subprocess.run([script, "-n", node, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)


# --- SQS ----------------------------------------------------------------------------------------------------------


SQS = Server(
    name="SQS (moto)",
    variable="ONWARD_TEST_SQS",
    default=None,  # moto comes with pip: ours is there wherever the tests run
    program="python3",
    package="python3",
    dsn=lambda port: f"http://127.0.0.1:{port}",
    # Not `program`: moto is in our virtual environment.
    command=lambda program, scratch, port: [
        *(sys.executable, str(Path(__file__).parent / "programs" / "sqs_server.py")),
        *("-H", "127.0.0.1", "-p", str(port)),
    ],
    answers=lambda dsn: _says(dsn, b"GET /moto-api/ HTTP/1.0\r\n\r\n", b"HTTP/1."),
    runs_as_us=True,
)

SQS_CLIENT = {"region": "eu-west-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
"""What moto does not check, and a client does not do without."""


def sqs() -> AbstractContextManager[str]:
    """The endpoint of a server that speaks SQS; tests use queues of their own."""
    return found_or_started(SQS)


def private_sqs(*, certificate: tuple[Path, Path] | None = None) -> AbstractContextManager[Instance]:
    """For tests that stop, freeze or kill the server: it forgets everything when it stops.

    With a certificate and its key it speaks TLS.
    """
    if certificate is None:
        return private(SQS)
    options = ["--ssl-cert", str(certificate[0]), "--ssl-key", str(certificate[1])]
    return private(
        replace(
            SQS,
            dsn=lambda port: f"https://127.0.0.1:{port}",
            command=lambda *where: [*SQS.command(*where), *options],
        )
    )


# --- Node.js ------------------------------------------------------------------------------------------------------


@contextmanager
def node_modules(*packages: str) -> Iterator[str]:
    """The folder that holds these packages of npm's, for NODE_PATH: `node_modules("bullmq@6.7.0")`."""
    node()
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "onward-tests"
    kept = home / "+".join(packages).replace("/", "_")
    if not kept.exists():
        home.mkdir(parents=True, exist_ok=True)
        _say(f"Installing {' and '.join(packages)} with npm into {kept} …")
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            options = ["--prefix", scratch, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            done = subprocess.run(
                ["npm", "install", *options, *packages],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode != 0:
                raise ServerMissing(f"npm install {' '.join(packages)} failed:\n{done.stdout[-2000:]}")
            with suppress(OSError):  # somebody else was faster
                (Path(scratch) / "node_modules").rename(kept)
    yield str(kept)


def node() -> Path:
    """The program, which npm goes with; installed if need be."""
    hint = "Install them (Debian, Ubuntu: sudo apt-get install nodejs npm)."
    if _missing("node", "npm"):
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise ServerMissing(f"The tests need node and npm, and they are not on this machine. {hint}")
        with _one_at_a_time():
            if _missing("node", "npm"):
                install("nodejs", "npm")
    if missing := _missing("node", "npm"):
        raise ServerMissing(f"apt-get installed nodejs and npm, but there is no program {missing[0]!r}. {hint}")
    return Path(shutil.which("node") or "node")


def chromium() -> str:
    """The browser: that of ONWARD_TEST_CHROMIUM, or Debian's, installed if need be."""
    if given := os.environ.get("ONWARD_TEST_CHROMIUM"):
        return given
    if _missing("chromium"):
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise ServerMissing(
                "The tests need a chromium. Install it (Debian: sudo apt-get install chromium), or say where it is in "
                "ONWARD_TEST_CHROMIUM."
            )
        with _one_at_a_time():
            if _missing("chromium"):
                install("chromium")
    return shutil.which("chromium") or "chromium"


def _missing(*programs: str) -> list[str]:
    return [program for program in programs if shutil.which(program) is None]
