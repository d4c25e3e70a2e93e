"""Queues in the database of an app: a queue's jobs are chains of one job, which commit with your data."""

from onward.queue.providers.database.provider import Database, DatabaseProvider

__all__ = ["Database", "DatabaseProvider"]
