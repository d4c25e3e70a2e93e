"""What a dashboard does not show or do, and why; or where to look instead."""

from datetime import datetime


class Refusal(Exception):
    """The answer is a page that says so, with this status."""

    def __init__(self, status: int, words: str, *, headers: dict[str, str] | None = None) -> None:
        self.status, self.words, self.headers = status, words, headers or {}
        super().__init__(words)


class NotThere(Refusal):
    """There is nothing at this address, or no longer."""

    def __init__(self, words: str) -> None:
        super().__init__(404, words)


class Away(Refusal):
    """The database does not answer, or cannot be reached."""

    def __init__(self, words: str, *, since: datetime) -> None:
        self.since = since
        """When that was first noticed."""
        super().__init__(503, words, headers={"retry-after": "5"})


class Elsewhere(Exception):
    """What was asked for is on another page of ours, at this path."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(path)
