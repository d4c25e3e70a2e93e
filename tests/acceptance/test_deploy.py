"""The deploy examples: commands say what is taken, stops are waited for, and what this machine can run is run."""

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
import yaml

from command import until
from onward import JobType, Onward
from onward.cli.commands import cli
from support import SOON

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
ship = JobType("orders.ship", input=int, output=str)
BEYOND_GRACE = 10
"""Seconds that a stop may take when the grace period is over."""
HEROKU = 30.0
"""Its patience, which cannot be changed."""


def loaded(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def procfile() -> dict[str, str]:
    lines = (DEPLOY / "Procfile").read_text().splitlines()
    return dict(tuple(map(str.strip, line.split(":", 1))) for line in lines)  # type: ignore[misc]


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd" / name)
    return parser


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def pod(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["template"]["spec"]
    return found


def commands() -> Iterator[tuple[str, list[str], float | None]]:
    """Where each command of the examples is, its words behind `onward`, and for how long its stop is waited for."""
    for name, line in procfile().items():
        for part in line.split("&&"):
            yield f"Procfile {name}", shlex.split(part)[1:], HEROKU if name == "worker" else None
    for path in sorted((DEPLOY / "systemd").iterdir()):
        service = unit(path.name)["Service"]
        patience = service.get("TimeoutStopSec")
        yield path.name, shlex.split(service["ExecStart"])[1:], None if patience is None else seconds(patience)
    for name, service in loaded("compose.yaml")[0]["services"].items():
        if "command" in service:
            patience = service.get("stop_grace_period")
            yield f"compose {name}", service["command"], None if patience is None else seconds(patience)
    for name in ("migrate.yaml", "worker.yaml"):
        found = pod(loaded(f"kubernetes/{name}")[0])
        yield name, found["containers"][0]["args"], found.get("terminationGracePeriodSeconds")


@pytest.mark.parametrize(("words", "patience"), [pytest.param(*rest, id=name) for name, *rest in commands()])
def test_commands_are_understood_and_a_stop_is_waited_for(words: list[str], patience: float | None) -> None:
    command: Any = typer.main.get_command(cli)
    name, *arguments = words

    said = command.commands[name].make_context(name, arguments).params

    if name == "worker":
        assert patience is not None
        assert patience >= said["grace"] + BEYOND_GRACE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text().replace("/srv/shop/.venv/bin/onward", sys.executable)
        (tmp_path / path.name).write_text(text)
    units = [str(path) for path in sorted(tmp_path.iterdir())]

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )

    assert [line for line in verified.stderr.splitlines() if "onward" in line] == []
    assert verified.returncode == 0, verified.stderr


def test_kubernetes_probes_scalers_and_budgets_are_for_the_deployment() -> None:
    worker = loaded("kubernetes/worker.yaml")[0]
    container = pod(worker)["containers"][0]
    labels = worker["spec"]["template"]["metadata"]["labels"]
    annotations = worker["spec"]["template"]["metadata"]["annotations"]
    port = container["ports"][0]

    assert worker["spec"]["selector"]["matchLabels"] == labels
    assert loaded("kubernetes/disruptions.yaml")[0]["spec"]["selector"]["matchLabels"] == labels
    assert f"--health-port={port['containerPort']}" in container["args"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
        "startupProbe": "/healthz",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    for name in ("hpa", "keda-postgres", "keda-prometheus"):
        assert loaded(f"kubernetes/{name}.yaml")[0]["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    scaled, authentication = loaded("kubernetes/keda-postgres.yaml")
    assert scaled["spec"]["triggers"][0]["authenticationRef"]["name"] == authentication["metadata"]["name"]
    secret = authentication["spec"]["secretTargetRef"][0]["name"]
    assert container["envFrom"][0]["secretRef"]["name"] == secret


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_puts_the_manifests_together() -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, check=False
    )

    assert built.returncode == 0, built.stderr
    kinds = sorted(document["kind"] for document in yaml.safe_load_all(built.stdout))
    assert kinds == ["Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget"]


@pytest.mark.skipif(
    subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0
    if shutil.which("docker")
    else True,
    reason="no docker compose here",
)
def test_docker_compose_understands_its_file() -> None:
    environment = {**os.environ, "POSTGRES_PASSWORD": "secret"}
    command = ["docker", "compose", "--file", str(DEPLOY / "compose.yaml"), "config", "--quiet"]

    assert subprocess.run(command, env=environment, check=False).returncode == 0


@pytest.mark.slow
def test_a_release_of_the_procfile_works_and_the_query_of_keda_counts_what_is_left(
    database_url: str, tmp_path: Path
) -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    environment = {**own, "PATH": path, "DATABASE_URL": database_url}
    query = loaded("kubernetes/keda-postgres.yaml")[0]["spec"]["triggers"][0]["metadata"]["query"]

    released = subprocess.run(
        procfile()["release"], shell=True, cwd=DEPLOY, env=environment, capture_output=True, text=True, check=False
    )
    assert released.returncode == 0, released.stderr
    said = tmp_path / "said"
    with Onward(database_url, jobs=[ship]).sync as client, psycopg.connect(database_url, autocommit=True) as connection:

        def left() -> int:
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        chains = client.start_many([ship.with_input(n) for n in range(3)])
        client.start(ship, 4, delay=SOON * 100)
        assert left() == 3
        client.pause(ship)
        assert left() == 0
        client.resume(ship)
        with said.open("wb") as file:
            worker = subprocess.Popen(
                shlex.split(procfile()["worker"]), cwd=DEPLOY, env=environment, stderr=file, start_new_session=True
            )
        try:
            assert [chain.wait(timeout=SOON) for chain in chains] == [f"parcel-{n}" for n in range(3)]
            assert left() == 0
            until(lambda: said.read_text().count("takes jobs") == 2, or_else=said.read_text)
            os.killpg(worker.pid, signal.SIGTERM)
            assert worker.wait(SOON.total_seconds()) == 0
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
