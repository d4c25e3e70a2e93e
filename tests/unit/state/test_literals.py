"""Values spelled out in SQL."""

import enum

from onward.state.postgres.session import literal


class Word(str, enum.Enum):  # noqa: UP042 - as people have it
    ONE = "it's one"


class Number(int, enum.Enum):
    TWO = 2


class Share(float):
    def __str__(self) -> str:
        return "half"


def test_members_of_an_enum_are_written_as_what_they_are() -> None:
    assert literal(Word.ONE) == "E'it''s one'"
    assert literal(Number.TWO) == "2"
    assert literal(Share(0.5)) == "0.5"
