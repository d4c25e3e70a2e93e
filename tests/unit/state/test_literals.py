"""Values spelled out in SQL."""

import enum

from onward.state.postgres.session import literals


class Word(str, enum.Enum):  # noqa: UP042 - as people have it
    ONE = "it's one"


class Number(int, enum.Enum):
    TWO = 2


class Share(float):
    def __str__(self) -> str:
        return "half"


def test_members_of_an_enum_are_written_as_what_they_are() -> None:
    assert literals([Word.ONE, Number.TWO, Share(0.5)]) == ["E'it''s one'", "2", "0.5"]
