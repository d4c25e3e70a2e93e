"""Onward through an application's SQLAlchemy engine or sessionmaker, on Postgres or SQLite, async or sync."""

from onward.state.sqlalchemy.driver import SqlAlchemyDriver, SyncSqlAlchemyDriver, driver_for

__all__ = ["SqlAlchemyDriver", "SyncSqlAlchemyDriver", "driver_for"]
