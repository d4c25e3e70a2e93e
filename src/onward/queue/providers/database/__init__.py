"""Queues in the database of an app: a queue's jobs are chains of one job, which commit with your data."""

from onward.queue.providers.database.factory import Database
from onward.queue.providers.database.provider import DatabaseProvider

__all__ = ["Database", "DatabaseProvider"]
