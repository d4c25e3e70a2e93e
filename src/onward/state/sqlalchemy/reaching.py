"""How libpq reaches the server that an engine connects to: with all that the engine was told, or not at all.

What an engine was given beside its URL (`connect_args`, `creator`, listeners) may be what makes its connections safe. A
connection made without it could hand the password to whoever answers.
"""

from collections.abc import Mapping
from inspect import getclosurevars, isfunction
from typing import Any

from sqlalchemy import Engine

_OF_PSYCOPG = {"autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory"}
_OF_ASYNCPG = {
    "command_timeout", "max_cacheable_statement_size", "max_cached_statement_lifetime", "prepared_statement_cache_size",
    "prepared_statement_name_func", "statement_cache_size", "timeout",
}  # fmt: skip
"""What is for the client itself, and says nothing about the server or the way there."""
_SPOKEN_BY_BOTH = {"host", "port", "user", "password", "passfile", "target_session_attrs"}
_SSL_MODES = {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}


def conninfo_of(engine: Engine) -> str | None:
    """The engine's server and all its options for libpq; None if there is something that libpq cannot be told."""
    given = _arguments_of(engine)
    if given is None:
        return None
    words = _from_asyncpg(given) if engine.dialect.driver == "asyncpg" else _from_psycopg(given)
    if words is None or not all(isinstance(word, str | int) for word in words.values()):
        return None
    import psycopg
    from psycopg.conninfo import make_conninfo

    try:
        return make_conninfo("", **words)
    except psycopg.ProgrammingError:
        return None


def _arguments_of(engine: Engine) -> Mapping[str, Any] | None:
    """What the engine tells its client with each connection; None where the application's own code has the say."""
    creator = engine.pool._creator
    if (
        not isfunction(creator)
        or creator.__module__ != "sqlalchemy.engine.create"
        or engine.dialect.dispatch.do_connect
    ):
        return None
    # SQLAlchemy keeps it to itself.
    arguments: Mapping[str, Any] | None = getclosurevars(creator).nonlocals.get("cparams")
    return arguments


def _from_psycopg(given: Mapping[str, Any]) -> dict[str, Any] | None:
    return {name: value for name, value in given.items() if name not in _OF_PSYCOPG and value is not None}


def _from_asyncpg(given: Mapping[str, Any]) -> dict[str, Any] | None:
    words: dict[str, Any] = {}
    value: Any
    for name, value in given.items():
        if name in _OF_ASYNCPG or value is None:
            continue
        if name in _SPOKEN_BY_BOTH:
            words[name] = ",".join(map(str, value)) if isinstance(value, list) else value
        elif name == "database":
            words["dbname"] = value
        elif name == "ssl" and (value is False or (isinstance(value, str) and value in _SSL_MODES)):
            words["sslmode"] = value or "disable"
        elif name == "server_settings" and isinstance(value, Mapping):
            words["options"] = " ".join(f"-c {key}={_escaped(str(setting))}" for key, setting in value.items())
        else:
            return None
    return words


def _escaped(setting: str) -> str:
    return setting.replace("\\", "\\\\").replace(" ", "\\ ")
