"""Each transition is written down once for each database, and whatever needs it includes it."""

import re
from collections import Counter
from pathlib import Path

import pytest

import onward.state
from onward.state.rows import JOB_COLUMNS
from onward.state.statement import Statements

DATABASES = ["postgres", "sqlite"]
ROOT = Path(onward.state.__file__).parent
COMPARISON = re.compile(r"\bIN \([^()]*\)|\b(?:WHERE|AND|OR|WHEN) (?:NOT )?[\w.]+ (?:=|<>) '\w+'|'\w+' (?:= ANY|IN)\b")


def files(database: str, folder: str = "*") -> dict[str, str]:
    """The SQL of an adapter by file, without comments other than those that are replaced."""
    return {
        f"{file.parent.name}/{file.stem}": re.sub(r"--[^\n]*", "", file.read_text())
        for file in (ROOT / database).glob(f"{folder}/*.sql")
    }


def included(database: str, folder: str = "*") -> Counter[str]:
    return Counter(path for sql in files(database, folder).values() for path in re.findall(r"/\*include (.*?)\*/", sql))


@pytest.mark.parametrize("database", DATABASES)
def test_one_file_says_what_makes_a_job_completed(database: str) -> None:
    spelling = [name for name, sql in files(database).items() if "'completed'" in COMPARISON.sub("", sql)]

    assert spelling == ["fragments/settled"]


@pytest.mark.parametrize("database", DATABASES)
def test_one_file_lists_the_columns_of_a_new_job(database: str) -> None:
    inserted = {
        found
        for sql in files(database).values()
        for found in re.findall(r"INSERT INTO /\*schema\*/job \(\s*(/\*.*?\*/|\w+)", sql)
    }
    lists = {name for name, sql in files(database).items() if re.search(r"payload_version,\s+status,\s+rank", sql)}

    assert inserted == {"/*include fragments/new_job_columns*/"}
    # The latter has all there are, for jobs that are moved as they are.
    assert {name for name in lists if not name.startswith("migrations/")} - {"fragments/history_columns"} == {
        "fragments/new_job_columns"
    }


@pytest.mark.parametrize("database", DATABASES)
def test_migrations_call_functions_up_and_contain_none(database: str) -> None:
    functions = files(database, "functions")

    assert [
        name for name, sql in files(database, "migrations").items() if "CREATE FUNCTION" in sql or "$$" in sql
    ] == []
    assert included(database, "migrations") == dict.fromkeys(functions, 1)


@pytest.mark.parametrize("database", DATABASES)
def test_whatever_is_included_exists_and_every_fragment_is_needed(database: str) -> None:
    assert included(database).keys() == files(database, "fragments").keys() | files(database, "functions").keys()


@pytest.mark.parametrize("name", ["job_columns", "history_job_columns"])
@pytest.mark.parametrize("database", DATABASES)
def test_a_job_is_read_in_the_order_of_its_columns(database: str, name: str) -> None:
    fragments = files(database, "fragments")
    if f"fragments/{name}" not in fragments:
        pytest.skip("keeps no history")
    stored = fragments.get("fragments/stored_columns", "")
    text = fragments[f"fragments/{name}"].replace("/*include fragments/stored_columns*/", stored)

    columns = re.findall(r"job\.(\w+)|problem(?=\(job\))|NULL", text)

    assert [name or "problem" for name in columns] == list(JOB_COLUMNS)


@pytest.mark.parametrize("database", DATABASES)
def test_nothing_is_left_to_replace_in_what_is_run(database: str) -> None:
    statements = Statements(f"onward.state.{database}", table=lambda name: name)

    texts = [statements(name, repeat=2) for name in statements.names()] + [sql for *_, sql in statements.migrations()]

    assert [found for text in texts for found in re.findall(r"/\*.*?\*/", text)] == [
        "/*calls nothing*/" for text in texts for _ in range(text.count("/*calls nothing*/"))
    ]
