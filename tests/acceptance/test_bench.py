"""`onward bench` on real databases, and the benchmarks of `make bench` with a handful of jobs."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import psycopg
import pytest
from benchmarks import report
from benchmarks.chart import bars, lines
from benchmarks.samples import Samples
from benchmarks.targets import judge

ROOT = Path(__file__).parents[2]
HARNESS = Path(os.environ.get("BENCH_HARNESS", ROOT.parent / "shared" / "bench"))


@pytest.fixture
def database(postgres_server: str) -> Iterator[str]:
    """An empty Postgres database: the schema's name is always the same, and others may be at it elsewhere."""
    name = f"onward_bench_{os.getpid()}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres_server.rpartition("/")[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def bench(url: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "onward", "bench", url, *arguments],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def check_table(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 0, run.stderr
    for words in ("one by one", "50 at a time", "run and settle, 7 at a time", "p50", "p99"):
        assert words in run.stdout
    assert "running" in run.stderr


def schemas(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'onward%'")
        return [row[0] for row in found]


def test_a_postgres_server_is_measured_and_left_as_it_was(database: str) -> None:
    run = bench(database, "--count", "50", "--concurrency", "7")

    check_table(run)
    assert schemas(database) == []


def test_a_sqlite_file_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")

    run = bench(f"sqlite:///{file}", ONWARD_COUNT="50", ONWARD_CONCURRENCY="7")

    check_table(run)
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("orders",)]


def test_a_file_that_did_not_exist_does_not_stay(tmp_path: Path) -> None:
    run = bench(f"sqlite:///{tmp_path}/new.db", "--count", "50", "--json")

    assert run.returncode == 0, run.stderr
    assert [figure["unit"] for figure in json.loads(run.stdout)["figures"]] == ["/s", "/s", "/s", "ms", "ms"]
    assert list(tmp_path.iterdir()) == []


def test_a_schema_of_that_name_is_left_alone(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA onward_bench")
        connection.execute("CREATE TABLE onward_bench.precious (id int)")

    run = bench(database, "--count", "50")

    assert run.returncode == 1
    assert "there is a schema onward_bench already" in run.stderr
    assert "DROP SCHEMA onward_bench CASCADE" in run.stderr
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM onward_bench.precious").fetchone() == (0,)


def test_tables_of_that_name_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE onward_bench_job (id INTEGER)")

    run = bench(f"sqlite:///{file}", "--count", "50")

    assert run.returncode == 1
    assert "there are tables named onward_bench_… already" in run.stderr
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("onward_bench_job",)]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://", "give postgresql://… or sqlite:///file.db"),
        ("redis://localhost", "give postgresql://… or sqlite:///file.db"),
        ("postgresql://localhost:1/nowhere", "cannot use the database at localhost:1/nowhere"),
    ],
)
def test_what_cannot_be_measured_is_said_in_words(url: str, words: str) -> None:
    run = bench(url)

    assert run.returncode == 1
    assert words in run.stderr
    assert "Traceback" not in run.stderr


# -- make bench


@pytest.mark.slow
@pytest.mark.skipif(not HARNESS.exists(), reason="the benchmark harness is not beside the project: set BENCH_HARNESS")
def test_the_benchmarks_run_ours_and_the_bare_drivers(tmp_path: Path) -> None:
    little = ["--rounds", "1", "--scale", "0.001", "--output", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "work", "growth", *little],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stdout + run.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert {"work", "target", "snapshot"} == set(results["samples"])
    assert set(results["samples"]["work"]) == {"onward-write", "bare-write", "onward-chain", "onward-fan-in"}
    assert all(figures["settled"]["0"] > 0 for figures in results["samples"]["work"].values())
    judged = {target["target"]: target["state"] for target in results["targets"]}
    assert judged["work: drain, settled jobs/s, onward-write ÷ bare-write"] != "not measured"
    assert judged["postgres: drain, settled jobs/s, onward ÷ pgqueuer"] == "not measured"
    assert (tmp_path / "work-drain.svg").exists()


def measured() -> Samples:
    samples = Samples()
    for number, (ours, theirs) in enumerate([(20.0, 10.0), (3.0, 2.0), (40.0, 10.0)]):
        samples.add("postgres", "onward", number, {"settled": ours, "rss": 70.0})
        samples.add("postgres", "pgqueuer", number, {"settled": theirs})
    return samples


def test_ratios_are_taken_within_rounds() -> None:
    assert measured().ratio("postgres", "onward", "pgqueuer", "settled") == 2.0


def test_a_run_is_judged_by_the_targets() -> None:
    verdicts = {verdict.words: (verdict.found, verdict.state) for verdict in judge(measured())}

    assert verdicts["postgres: drain, settled jobs/s, onward ÷ pgqueuer"] == (2.0, "met")
    assert verdicts["postgres: RSS MB after the drain, onward"] == (70.0, "not met")
    assert verdicts["postgres: drain, settled jobs/s, onward ÷ bare-pg"] == (None, "not measured")


def test_samples_survive_json() -> None:
    text = json.dumps(measured().as_json())

    assert Samples(json.loads(text)).ratio("postgres", "onward", "pgqueuer", "settled") == 2.0


@pytest.mark.parametrize(
    "picture", [bars("A <title>", {"onward": 2.0, "a & b": 1000.0}), lines("B", "x", {"1 k": 5.0})]
)
def test_charts_are_valid_svg(picture: str) -> None:
    root = ElementTree.fromstring(picture)

    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_every_suite_measured_has_its_charts() -> None:
    samples = Samples()
    samples.add("postgres", "onward", 0, {"settled": 1.0, "one": 1.0, "many": 1.0, "p50": 1.0})
    samples.add("history", "1 k", 0, {"drain": 1.0})

    names = {"postgres-drain", "postgres-start-one", "postgres-start-many", "postgres-latency", "history"}
    assert set(report.charts(samples)) == names
