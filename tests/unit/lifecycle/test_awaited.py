"""What is remembered of those who wait, and that it is forgotten."""

from onward.lifecycle.effects import Awaited


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_chain_is_remembered_for_a_while_and_then_nothing_is_left() -> None:
    clock = Clock()
    awaited = Awaited(remember=10.0, now=clock)
    assert not awaited

    awaited.add("a")
    clock.now = 9.0
    assert awaited
    assert "a" in awaited

    clock.now = 10.0
    assert not awaited
    assert "a" not in awaited


def test_who_says_so_again_is_remembered_longer() -> None:
    clock = Clock()
    awaited = Awaited(remember=10.0, now=clock)

    for clock.now in range(100):
        awaited.add("a")
        assert "a" in awaited

    clock.now = 108.0
    assert "a" in awaited


def test_a_chain_is_not_forgotten_because_others_are_awaited() -> None:
    clock = Clock()
    awaited = Awaited(remember=10.0, now=clock)
    awaited.add("early")
    clock.now = 8.0
    awaited.add("a")
    clock.now = 12.0
    awaited.add("late")

    assert "a" in awaited

    clock.now = 23.0
    awaited.add("later still")
    assert "early" not in awaited


def test_it_does_not_grow_without_bound() -> None:
    awaited = Awaited(remember=10.0, most=100, now=Clock())

    for n in range(1_000):
        awaited.add(str(n))

    assert sum(str(n) in awaited for n in range(1_000)) <= 200
    assert "999" in awaited
