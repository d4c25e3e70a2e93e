"""Which SQLite there is: the library comes with Python or with the system, and no installer looks at its version."""

import sqlite3
from functools import cache

from onward.errors import ConfigurationError

OLDEST = (3, 35, 0)
"""The first that has RETURNING and MATERIALIZED, which the statements use."""
_ALWAYS_HAS_JSON = (3, 38, 0)


def require_version() -> None:
    """Raise ConfigurationError where the library is too old for the statements."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigurationError(
            f"this Python has SQLite {sqlite3.sqlite_version}; Onward needs {'.'.join(map(str, OLDEST))} or newer: "
            "use a newer Python or system, or Postgres"
        )
    if sqlite3.sqlite_version_info < _ALWAYS_HAS_JSON and not _has_json():
        raise ConfigurationError(
            f"this Python's SQLite {sqlite3.sqlite_version} was built without its JSON functions, which Onward needs: "
            "use a newer Python or system, or Postgres"
        )


@cache
def _has_json() -> bool:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("SELECT count(*) FROM json_each('[1]')")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True
