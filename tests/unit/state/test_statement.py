"""`:name` parameters become what a driver wants; everything that only looks like one stays."""

import pytest

from onward.errors import ConfigurationError
from onward.state.statement import ParameterStyle, checked_identifier, spell


@pytest.mark.parametrize(
    ("style", "sql", "names"),
    [
        ("dollar", "select $1, $2, $1", ("a", "b")),
        ("percent", "select %(a)s, %(b)s, %(a)s", ("a", "b")),
        ("qmark", "select ?, ?, ?", ("a", "b", "a")),
    ],
)
def test_parameters_are_spelled_for_the_driver(style: ParameterStyle, sql: str, names: tuple[str, ...]) -> None:
    spelled = spell("select :a, :b, :a", style)

    assert (spelled.sql, spelled.names) == (sql, names)


@pytest.mark.parametrize(("style", "values"), [("dollar", [1, 2]), ("percent", [1, 2]), ("qmark", [1, 2, 1])])
def test_values_come_in_the_order_of_their_places(style: ParameterStyle, values: list[int]) -> None:
    assert list(spell("select :a, :b, :a", style).positional({"b": 2, "a": 1, "unused": 3})) == values


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError, match="a"):
        spell("select :a", "dollar").positional({})


@pytest.mark.parametrize("style", ["dollar", "percent", "qmark"])
@pytest.mark.parametrize(
    "sql",
    [
        "select ':a'",
        "select 'it''s :a'",
        'select ":a"',
        'select "say "":a"""',
        "select 1 -- :a\n",
        "select 1 -- it's :a\n",
        "select /* :a */ 1",
        "select /* several\nlines :a */ 1",
        "select $$ :a $$",
        "select $tag$ :a $$ :b $tag$",
        "select 1::text",
        "select '{}'::text[]",
        "select x[1:2]",
        "select array[1,2][n:m]",
    ],
)
def test_what_only_looks_like_a_parameter_stays(sql: str, style: ParameterStyle) -> None:
    spelled = spell(sql, style)

    assert (spelled.sql, spelled.names) == (sql, ())


def test_a_parameter_may_be_cast() -> None:
    assert spell("select :a::uuid[], (:b)::int", "dollar").sql == "select $1::uuid[], ($2)::int"


def test_parameters_after_strings_and_comments_are_found() -> None:
    spelled = spell("select ':x', :a -- :y\n, $$:z$$, /* ' */ :b, ''", "dollar")

    assert (spelled.sql, spelled.names) == ("select ':x', $1 -- :y\n, $$:z$$, /* ' */ $2, ''", ("a", "b"))


def test_a_name_ends_where_words_end() -> None:
    assert spell("values(:a,:ab,:a_1)", "percent").sql == "values(%(a)s,%(ab)s,%(a_1)s)"


def test_percent_signs_are_doubled_only_where_they_mean_something() -> None:
    sql = "select 5 % 2, 'a%', \"b%\", :a -- 100%\n"

    assert spell(sql, "percent").sql == "select 5 %% 2, 'a%%', \"b%%\", %(a)s -- 100%%\n"
    assert spell(sql, "dollar").sql == "select 5 % 2, 'a%', \"b%\", $1 -- 100%\n"
    assert spell(sql, "qmark").sql == "select 5 % 2, 'a%', \"b%\", ? -- 100%\n"


@pytest.mark.parametrize("name", ["onward", "_jobs", "Jobs2", "a", "a" * 41])
def test_a_plain_identifier_is_accepted(name: str) -> None:
    assert checked_identifier(name, option="schema") == name


@pytest.mark.parametrize(
    "name", ["", "2jobs", "my jobs", 'a"b', "a;b", "a.b", "a-b", "żółw", "a" * 42, "jobs\n", "a'b", "a\0",
             "ſtate", "job\u212a", "pg_jobs", "PG_jobs", "pg_catalog", "information_schema", "Information_Schema",
             "sqlite_jobs"]
)  # fmt: skip
def test_any_other_identifier_is_refused_with_its_option_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix="):
        checked_identifier(name, option="prefix")
