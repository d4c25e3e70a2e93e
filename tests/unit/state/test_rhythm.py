"""When the change counter of a file is looked at."""

import pytest

from onward.state.sqlite.commits import Rhythm


def looks(rhythm: Rhythm, *found: str) -> list[float | None]:
    """The pauses after looks that found these: "w" written, "c" committed."""
    pauses = []
    for one in found:
        rhythm.looked(written="w" in one, changed="c" in one)
        pauses.append(rhythm.pause)
    return pauses


def test_who_is_told_waits_to_be_told() -> None:
    rhythm = Rhythm()

    assert looks(rhythm, "", "", "") == [None, None, None]
    assert rhythm.is_told


def test_a_commit_is_followed_by_a_few_looks() -> None:
    assert looks(Rhythm(), "wc", "wc", "") == [0.0025, 0.005, None]


def test_in_a_stream_of_commits_a_look_is_due_every_ten_milliseconds() -> None:
    assert looks(Rhythm(), *["wc"] * 100)[-1] == 0.01


def test_nor_do_writes_that_are_no_commits_make_them_more_frequent() -> None:
    assert looks(Rhythm(), *["w"] * 100)[-1] == 0.01


def test_what_was_written_is_looked_for_until_it_is_committed() -> None:
    rhythm = Rhythm()

    assert looks(rhythm, "w", "", "", "c", "") == [*(pytest.approx(0.01 / 32 * n) for n in (1, 2, 4, 8)), None]
    assert rhythm.is_told


def test_but_not_for_ever() -> None:
    rhythm = Rhythm()
    pauses = looks(rhythm, "w", *[""] * 200)

    waited = sum(pause for pause in pauses if pause)
    assert waited == pytest.approx(1.0, abs=0.05)
    assert pauses[-1] is None


def test_commits_that_nobody_tells_of_are_looked_for() -> None:
    rhythm = Rhythm()
    for _ in range(2):
        looks(rhythm, "c", "")
        assert rhythm.is_told

    looks(rhythm, "c")

    assert not rhythm.is_told


def test_one_that_is_told_makes_up_for_those_that_were_not() -> None:
    rhythm = Rhythm()

    looks(rhythm, "c", "", "c", "", "wc", "", "c", "", "c", "")

    assert rhythm.is_told
