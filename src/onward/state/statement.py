"""SQL with `:name` parameters, kept in files and spelled for a driver once.

An adapter's folder holds `sql/`, one statement to a file; `migrations/`, in order; and what these include: `fragments/`
of statements, and the `functions/` of the schema. Where such a file is loaded, these comments in it are replaced:

- `/*include fragments/completed*/`: that file, which may include others.
- `/*schema*/job`: the table, function or index of that name, as it is called in the database.
- `/*for each type, union all*/ … /*end*/`: what is between them as often as is asked for, joined by UNION ALL;
  `/*n*/1` in it is the number of the repetition, from 1.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

from onward.errors import ConfigurationError
from onward.options import given

ParameterStyle: TypeAlias = Literal["dollar", "percent", "qmark"]
"""`$1` (asyncpg), `%(name)s` (psycopg), `?` (sqlite3)."""

_TOKEN = re.compile(
    r"""
      (?P<keep> '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | :: )
    | (?<![\w:]) : (?P<name>[a-zA-Z_]\w*)
    | (?P<percent> % )
    """,
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(r"/\*include ([\w/]+)\*/")
_NAME = re.compile(r"/\*schema\*/(\w+)")
_EACH = re.compile(r"/\*for each type, union all\*/(?P<body>.*?)/\*end\*/", re.DOTALL)
_SCHEMA = "pg_catalog"
BUILTINS = frozenset({
    "array_agg", "array_append", "array_position", "array_to_string", "bool_or", "cardinality", "ceil", "chr",
    "clock_timestamp", "concat_ws", "count", "current_database", "current_setting", "date_part", "date_trunc",
    "first_value", "format", "hashtextextended", "json_array_elements", "json_array_elements_text", "json_each",
    "json_to_recordset", "json_typeof", "jsonb_build_array", "lower", "lpad", "make_interval", "max", "min",
    "pg_advisory_xact_lock", "pg_advisory_xact_lock_shared", "pg_control_system", "round", "row_number", "rpad",
    "set_config", "split_part", "statement_timestamp", "string_agg", "string_to_array", "strpos", "substr", "sum",
    "to_char", "to_hex", "to_timestamp", "unnest",
})  # fmt: skip
"""The server's own functions that our statements call."""
_OF_SERVER = re.compile(
    rf"""
      (?P<keep> '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ )
    | (?<![\w.]) (?P<function> {"|".join(sorted(BUILTINS))} ) (?= \s*\( )
    | \s? (?P<operator> \|\| | ->>? ) \s?
    | (?P<pinned> LANGUAGE\ plpgsql ) (?! \ /\*calls\ nothing\*/ )
    """,
    re.VERBOSE | re.DOTALL,
)
_IDENTIFIER = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,40}\Z")
_RESERVED = re.compile(r"pg_|information_schema\Z|sqlite_", re.IGNORECASE)
"""How the names of the databases' own schemas and tables begin."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """SQL as a driver wants it."""

    sql: str
    names: tuple[str, ...]
    """The parameters in the order of their places; each once for `dollar` and `percent`."""

    positional: Callable[[Mapping[str, Any]], Sequence[Any]]
    """The values in the order of the places."""


@lru_cache(maxsize=2048)
def spell(sql: str, style: ParameterStyle) -> Spelled:
    """Rewrite `:name` parameters; strings, comments, quoted names and `::` casts stay as they are."""
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        kept, name = match["keep"], match["name"]
        if style == "percent" and (match["percent"] or (kept and "%" in kept)):
            return (kept or "%").replace("%", "%%")
        if name is None:
            return match[0]
        if style == "qmark":
            names.append(name)
            return "?"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}" if style == "dollar" else f"%({name})s"

    spelled = _TOKEN.sub(place, sql)
    return Spelled(spelled, tuple(names), _in_order(names))


def _in_order(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    if len(names) == 1:
        only = names[0]
        return lambda parameters: (parameters[only],)
    return itemgetter(*names) if names else lambda parameters: ()


def with_servers_own(sql: str) -> str:
    """SQL that means the server's own functions and operators, whatever the connection's `search_path` may find.

    Who may create functions in a schema of that path could otherwise have them called in place of those that take any
    type, with the rights of whoever runs the statement. Operators that compare are left alone: for the types we compare
    the server has its own, and finds them first. Functions in PL/pgSQL, which compare arrays too, see nothing else.
    """

    def place(match: re.Match[str]) -> str:
        if match["function"]:
            # Of several arrays it is syntax, and never anything but the server's own.
            alone = match["function"] == "unnest" and _has_several(sql, match.end())
            return match[0] if alone else f"{_SCHEMA}.{match[0]}"
        if match["operator"]:
            return f" OPERATOR({_SCHEMA}.{match['operator']}) "
        return f"{match[0]} SET search_path = {_SCHEMA}, pg_temp" if match["pinned"] else match[0]

    return _OF_SERVER.sub(place, sql)


def _has_several(sql: str, start: int) -> bool:
    """Whether the brackets that open here hold more than one argument."""
    depth = 0
    for letter in sql[start:]:
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and letter == ")":
            return False
        if depth == 1 and letter == ",":
            return True
    return False


def checked_identifier(value: object, *, option: str) -> str:
    """A schema or table prefix that can be quoted safely and read aloud."""
    if not (isinstance(value, str) and _IDENTIFIER.fullmatch(value)):
        raise ConfigurationError(
            f"{given(option, value)}: use letters (a to z), digits and underscores, beginning with a letter, at most "
            "41 of them"
        )
    if _RESERVED.match(value):
        raise ConfigurationError(f"{option}={value!r}: names that begin like this are the database's own: use another")
    return value


class Statements:
    """The SQL files of one adapter, with its table names filled in."""

    def __init__(
        self, package: str, *, table: Callable[[str], str], finish: Callable[[str], str] = lambda sql: sql
    ) -> None:
        """`finish` gets each statement as it would be run, and gives it as it is."""
        self._package, self._table, self._finish = package, table, finish

    @lru_cache(maxsize=2048)  # noqa: B019 - they are no more, of all there are, than what `spell` remembers
    def __call__(self, name: str, *, repeat: int = 1) -> str:
        """The statement in `sql/<name>.sql`; its repeated part, if it has one, that many times."""
        return self._load(f"sql/{name}", repeat)

    def names(self) -> list[str]:
        """Every statement there is."""
        return self._names("sql")

    def migrations(self) -> list[tuple[int, str, str]]:
        """Version, name and SQL of every migration, in order."""
        return [(int(name[:4]), name, self._load(f"migrations/{name}", 1)) for name in self._names("migrations")]

    def newest_version(self) -> int:
        """That of the last migration; asked whenever an app is opened."""
        return int(self._names("migrations")[-1][:4])

    def _names(self, folder: str) -> list[str]:
        files = self._files.joinpath(folder).iterdir()
        return sorted(file.name.removesuffix(".sql") for file in files if file.name.endswith(".sql"))

    @cached_property
    def _files(self) -> Any:
        found = import_module(self._package).__file__
        if found is not None and (folder := Path(found).parent).is_dir():
            return folder
        from importlib import resources  # in an archive; it takes a tenth of the time of `import onward`

        return resources.files(self._package)

    def _load(self, path: str, repeat: int) -> str:
        sql = _EACH.sub(lambda match: _repeated(match["body"], repeat), self._read(path))
        return self._finish(_NAME.sub(lambda match: self._table(match[1]), sql))

    def _read(self, path: str) -> str:
        sql: str = self._files.joinpath(f"{path}.sql").read_text(encoding="utf-8")
        return _INCLUDE.sub(lambda match: _indented(self._read(match[1]).rstrip(), like=match), sql)


def _repeated(body: str, times: int) -> str:
    return "\nUNION ALL\n".join(body.replace("/*n*/1", str(n)) for n in range(1, times + 1))


def _indented(sql: str, *, like: re.Match[str]) -> str:
    """As far as the line in which it is included: people read our migrations as scripts."""
    line = like.string[like.string.rfind("\n", 0, like.start()) + 1 : like.start()]
    return sql.replace("\n", "\n" + " " * (len(line) - len(line.lstrip())))
