"""`onward chains`, `onward jobs`: lists, one of them, and how one goes on."""

import json
from typing import Any
from uuid import uuid4

import pytest

from onward import SyncOnward
from orders import charge, report, ship


def fail(client: SyncOnward, chain: Any) -> None:
    client.cancel(chain)


def test_chains_and_jobs_are_listed_for_people_and_for_programs(onward: Any, at: Any, client: SyncOnward) -> None:
    first = client.start(charge, {"id": 1})
    second = client.start(report, 7, blockers=[first])

    for noun in ("chains", "jobs"):
        told = onward(noun, "list", *at)
        assert [line.split()[0] for line in told.out.splitlines()] == [noun[:-1], str(second.id), str(first.id)]
        assert "blocked" in told.out
        assert "waits for 1 chain" in told.out
        found = onward(noun, "list", *at, "--json").json
        assert [one["id"] for one in found[noun]] == [str(second.id), str(first.id)]
        assert [one["status"] for one in found[noun]] == ["blocked", "pending"]
        assert found["next"] is None


def test_lists_are_filtered_and_come_in_pages(onward: Any, at: Any, client: SyncOnward) -> None:
    chains = client.start_many([charge.with_input({"id": n}) for n in range(5)])
    fail(client, chains[0])

    def listed(*options: object) -> list[str]:
        return [one["id"] for one in onward("jobs", "list", *at, "--json", *options).json["jobs"]]

    ids = [str(chain.id) for chain in reversed(chains)]
    assert listed("--status", "failed") == listed("--reason", "cancelled") == ids[-1:]
    assert listed("--type", "orders.charge", "--status", "pending") == ids[:-1]
    assert listed("--type", "nothing") == listed("--older-than", "1h") == listed("--error", "nothing") == []
    assert listed("--newer-than", "1h") == ids
    page = onward("jobs", "list", *at, "--limit", 2)
    assert f"there may be more: --after {ids[1]}" in page.words
    assert listed("--limit", 2, "--after", ids[1]) == ids[2:4]
    looked = onward("jobs", "list", *at, "--type", "nothing", "--among", 2)
    assert f"looked through 2 jobs; there may be more: --after {ids[1]}" in looked.words


def test_a_job_is_shown_with_all_that_has_to_do_with_it(onward: Any, at: Any, client: SyncOnward) -> None:
    chain = client.start(charge, {"id": 1})
    waiting = client.start(report, 7, blockers=[chain])
    with client.complete(chain.id) as completion:
        completion.continue_with(ship, "parcel-1")
    found = client.find_chain(chain.id)
    assert found is not None
    step = found.current

    shown = onward("chains", "show", *at, chain.id, "--json").json
    assert shown["job"]["id"] == str(step.id)
    assert [one["id"] for one in shown["steps"]] == [str(chain.id), str(step.id)]
    assert [one["id"] for one in shown["waiting"]] == [str(waiting.id)]
    assert [(one["depth"], one["id"]) for one in shown["tree"]] == [(0, str(chain.id)), (1, str(step.id))]
    assert onward("chains", "show", *at, step.id, "--json").json["chain"]["id"] == str(chain.id)
    blocked = onward("jobs", "show", *at, waiting.id)
    assert f"{chain.id}  orders.charge  pending" in blocked.out
    people = onward("jobs", "show", *at, step.id).out
    assert f"└─ orders.ship  {step.id}  pending  <- this one" in people
    assert "what waits, or waited, for its chain" in people


def test_payloads_are_hidden_where_nobody_knows_what_is_secret(onward: Any, at: Any, client: SyncOnward) -> None:
    chain = client.start(charge, {"id": 4711})

    for words in (("jobs", "show", chain.id), ("chains", "show", chain.id), ("jobs", "list")):
        for form in ((), ("--json",)):
            assert "4711" not in onward(*words, *at, *form).out
    assert onward("jobs", "show", *at, chain.id, "--json", "--payloads").json["job"]["input"] == {"id": 4711}
    assert 'input      {"id":4711}' in onward("jobs", "show", *at, chain.id, "--payloads").out


def test_an_app_that_is_only_a_variable_unveils_nothing(
    onward: Any, at: Any, client: SyncOnward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address goes before it, so it is not asked what is secret."""
    chain = client.start(charge, {"id": 4711})
    monkeypatch.setenv("ONWARD_APP", "nowhere:app")

    assert "4711" not in onward("jobs", "show", *at, chain.id, "--json").out


def test_secrets_are_masked_by_the_app_that_knows_them(onward: Any, module: Any) -> None:
    *path, app = module(
        "@dataclass\nclass Card:\n    name: str\n    number: Annotated[str, Secret]\n"
        "pay = JobType('pay', input=Card, output=str)\njobs = [pay]\n"
    )
    chain = onward("start", "pay", '{"name": "Ada", "number": "4711"}', "--app", app, *path).out.strip()

    for form in ((), ("--json",)):
        shown = onward("jobs", "show", chain, "--app", app, *form).out
        assert "Ada" in shown
        assert "4711" not in shown


def test_payloads_of_types_that_the_app_does_not_have_are_hidden(onward: Any, module: Any, client: SyncOnward) -> None:
    """Another app's on the same tables: nobody knows what is secret in them."""
    *path, app = module("pay = JobType('pay', input=int, output=str)\njobs = [pay]\n")
    theirs, ours = (
        client.start(charge, {"id": 471147114}),
        onward("start", "pay", "815", "--app", app, *path).out.strip(),
    )

    for words in (("jobs", "show", theirs.id), ("chains", "show", theirs.id), ("jobs", "list"), ("chains", "list")):
        for form in ((), ("--json",)):
            assert "471147114" not in onward(*words, "--app", app, *form).out
    assert "815" in onward("jobs", "show", ours, "--app", app).out
    assert {job["id"]: job["input"] for job in onward("jobs", "list", "--app", app, "--json").json["jobs"]}[ours] == 815
    assert "471147114" in onward("jobs", "show", theirs.id, "--app", app, "--payloads").out


def test_a_chain_is_watched_until_it_ends(onward: Any, at: Any, client: SyncOnward) -> None:
    good, bad = client.start(charge, {"id": 1}), client.start(charge, {"id": 2})
    with client.complete(good) as completion:
        completion.done({"tracking": "x"})
    fail(client, bad)

    assert f"chain {good.id} has completed" in onward("chains", "watch", *at, good.id).words
    assert f"chain {bad.id} has failed" in onward("chains", "watch", *at, bad.id, code=3).words
    lines = onward("jobs", "watch", *at, bad.id, "--json", "--every", "50ms", code=3).out.splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["failed"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("jobs", "show", str(uuid4())), "there is no job"),
        (("chains", "show", str(uuid4())), "there is no chain or job"),
        (("chains", "watch", str(uuid4())), "there is no chain or job"),
        (("jobs", "show", "seven"), "'seven' is no id"),
        (("jobs", "list", "--after", "seven"), "'seven' is no id"),
    ],
)
def test_an_id_that_leads_nowhere_is_said(
    onward: Any, at: Any, client: SyncOnward, arguments: tuple[str, ...], words: str
) -> None:
    said = onward(*arguments, *at, code=1)

    assert words in said.words
    assert said.out == ""


def test_bad_input_gives_words_and_an_exit_code(onward: Any, tmp_path: Any, target: str, schema: str) -> None:
    assert "which jobs?" in onward("jobs", "list", code=1).words
    assert "there is no file" in onward("jobs", "list", "--database", f"sqlite:///{tmp_path}/no.db", code=1).words
    assert not (tmp_path / "no.db").exists()
    away = onward("jobs", "list", "--database", "postgresql://ada:secret@127.0.0.1:1/shop", code=1).words
    assert "cannot use the database at" in away
    assert "secret" not in away
    assert "such as 90s or 2h" in onward("jobs", "list", "--older-than", "long", code=2).words
    assert "Invalid value" in onward("jobs", "list", "--status", "odd", code=2).words
    if "postgres" in target:
        nowhere = onward("jobs", "list", "--database", target, "--schema", schema, code=1)
        assert "onward migrate" in nowhere.words
        assert "--schema and --prefix" in onward("jobs", "list", "--app", "shop:app", "--schema", "x", code=1).words


def test_options_are_variables_too(onward: Any, at: Any, client: SyncOnward, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = client.start(charge, {"id": 1})
    for name, value in zip(at[::2], at[1::2], strict=True):
        monkeypatch.setenv(f"ONWARD_{name[2:].upper()}", value)
    monkeypatch.setenv("ONWARD_JSON", "1")
    monkeypatch.setenv("ONWARD_TYPE", "orders.charge report")

    assert [one["id"] for one in onward("jobs", "list").json["jobs"]] == [str(chain.id)]


def test_what_an_error_says_neither_steers_the_terminal_nor_is_taken_for_markup(
    onward: Any, at: Any, client: SyncOnward, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = client.start(charge, {"id": 1})
    fail(client, chain)
    nasty = "[/nothing] [red]x \x1b[2J\u202e\x9b"
    monkeypatch.setattr("onward.client.words.in_short", lambda error: nasty)
    monkeypatch.setattr("onward.cli.chains.state_of", lambda job: nasty)
    monkeypatch.setattr("onward.cli.watching.state_of", lambda job: nasty)

    for command in ("list", "show", "watch"):
        given = [] if command == "list" else [chain.id]
        told = onward("chains", command, *at, *given, code=3 if command == "watch" else 0).out
        assert "[/nothing] [red]x ␛[2J��" in told, command
    monkeypatch.setenv("FORCE_COLOR", "1")
    told = onward("chains", "watch", *at, chain.id, code=3).out
    assert "[/nothing] [red]x" in told
    assert "\x1b[2J" not in told


def test_an_app_that_is_written_goes_before_an_address_of_the_environment(
    onward: Any, at: Any, client: SyncOnward, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = client.start(charge, {"id": 17})
    *path, app = module(
        "@job('orders.charge')\nasync def charge(attempt: Attempt[dict[str, int]]) -> int: ...\njobs = [charge]\n"
    )
    monkeypatch.setenv("ONWARD_DATABASE", "postgresql://nobody@127.0.0.1:1/nothing")

    assert '"id":17' in onward("jobs", "show", chain.id, "--app", app, *path).out
    onward("jobs", "show", chain.id, code=1)
    monkeypatch.setenv("ONWARD_SCHEMA", "nothing")
    monkeypatch.setenv("ONWARD_PREFIX", "nothing_")
    assert '"id":17' in onward("jobs", "show", chain.id, "--app", app, *path).out
    monkeypatch.delenv("ONWARD_SCHEMA")
    monkeypatch.delenv("ONWARD_PREFIX")
    assert "hidden" in onward("jobs", "show", chain.id, *at, "--app", app, *path).out


def test_lists_of_nothing_say_so_in_words(onward: Any, at: Any, client: SyncOnward) -> None:
    said = {
        "jobs list": "no jobs found",
        "chains list": "no chains found",
        "failed list": "nothing has failed",
        "paused": "no type is paused",
        "workers": "there are no workers",
    }

    for command, words in said.items():
        told = onward(*command.split(), *at)
        assert (told.out, told.words.splitlines()) == ("", [words]), command
    chosen = onward("failed", "list", *at, "--type", "report").words
    assert chosen.splitlines() == ["nothing has failed of what is asked for"]


def test_lists_of_nothing_are_empty_for_programs(onward: Any, at: Any, client: SyncOnward) -> None:
    assert onward("jobs", "list", *at, "--json").json == {"jobs": [], "next": None}
    assert onward("chains", "list", *at, "--json").json == {"chains": [], "next": None}
    assert onward("failed", "list", *at, "--json").json == {"groups": [], "complete": True}
    assert onward("paused", *at, "--json").json == {"paused": []}
    assert onward("workers", *at, "--json").json == {"workers": []}


def test_an_error_of_the_application_steers_no_terminal_and_is_one_line(onward: Any, tmp_path: Any) -> None:
    (tmp_path / "hostile.py").write_text("raise RuntimeError('a\\x1b[2J\\n b')")

    told = onward("jobs", "list", "--app", "hostile:app", "--app-dir", tmp_path, code=1)

    assert "RuntimeError: a␛[2J b (" in told.words
    assert len(told.words.splitlines()) == 1


def test_an_error_of_the_application_tells_no_password(onward: Any, tmp_path: Any) -> None:
    """As settings do that name what they do not like."""
    (tmp_path / "unset.py").write_text("raise ValueError('no address: postgresl://ada:hunter2@db/shop')")

    told = onward("jobs", "list", "--app", "unset:app", "--app-dir", tmp_path, code=1).words

    assert "postgresl://ada:***@db/shop" in told
    assert "hunter2" not in told


def test_it_is_said_what_to_do_where_a_pooler_is_in_between(onward: Any, pgbouncer_dsn: str) -> None:
    assert "name the app here (--app)" in onward("jobs", "list", "--database", pgbouncer_dsn, code=1).words
