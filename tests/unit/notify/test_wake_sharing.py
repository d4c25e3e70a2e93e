"""Who wakes for a hint that every process hears."""

from collections import Counter
from collections.abc import Sequence
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from onward.notify.contract import Hint, HintKind
from onward.notify.wake_sharing import WakeSharing, share_out

JOB = Hint(HintKind.READY, "mail")


class World:
    """Processes on one channel: everybody hears everything, in the same order."""

    def __init__(self, *room: int) -> None:
        self.time = 0.0
        self.room = {f"p{n}": number for n, number in enumerate(room)}
        self.views = {name: WakeSharing(name, lambda: self.time) for name in self.room}
        self.passed_on = 0
        for _ in range(2):
            self.tell(*self.views)

    def tell(self, *names: str) -> None:
        for name in names:
            news = self.views[name].news({"mail": self.room[name]})
            for view in self.views.values():
                view.hear(name, news)

    def send(self, nonce: str, count: int) -> Counter[str]:
        """How many wake in each process, until nobody passes on."""
        woken: Counter[str] = Counter()
        shares = {
            name: view.share(nonce, Hint(HintKind.READY, "mail", count), self.room[name])
            for name, view in self.views.items()
        }
        for name, (mine, _) in shares.items():
            woken[name] += mine
            self.room[name] -= mine
        for name, (_, rest) in shares.items():
            if rest:
                self.passed_on += 1
                self.tell(name)
                woken += self.send(f"{nonce} again", rest)
        return +woken


def forgotten(view: WakeSharing, names: Sequence[str]) -> list[Hint]:
    return [hint for name in names for hint in view.forget(name)]


def test_one_job_wakes_one() -> None:
    for n in range(100):
        assert World(3, 3, 3).send(f"word {n}", 1).total() == 1


def test_jobs_are_spread_over_processes() -> None:
    chosen = Counter(name for n in range(300) for name in World(1, 1, 1).send(f"word {n}", 1))

    assert min(chosen.values()) > 50


def test_as_many_wake_as_there_are_jobs_and_no_more_than_can() -> None:
    assert World(1, 9, 1).send("word", 5) == {"p0": 1, "p1": 3, "p2": 1}
    assert World(1, 9, 1).send("word", 500) == {"p0": 1, "p1": 9, "p2": 1}


def test_a_process_that_can_do_less_than_it_told_passes_on_once() -> None:
    world = World(1, 1, 1)
    world.room.update(p0=0, p1=0)

    woken = [world.send(f"word {n}", 1) for n in range(20)]

    assert sum(one.total() for one in woken) == 1  # there was one to wake, and it was found
    assert woken[0] == {"p2": 1}
    assert world.passed_on <= 3


def test_one_that_can_do_more_than_it_told_wakes_all_the_same() -> None:
    world = World(0, 0, 0)
    world.room["p1"] = 1

    assert world.send("word", 1) == {"p1": 1}


def test_what_was_left_to_a_process_that_is_missed_is_shared_out() -> None:
    world = World(0, 0, 1)
    world.room["p0"] = 1
    world.tell("p0")
    gone = world.views.pop("p2")
    lost = next(f"word {n}" for n in range(100) if share_out(f"word {n}", 1, {"p0": 1, "p2": 1}) == {"p2": 1})
    assert world.send(lost, 1).total() == 0

    world.time += 4.0
    world.tell("p0", "p1")
    assert not world.views["p0"].missed()
    world.time += 2.0

    missed = world.views["p0"].missed()
    assert missed == [gone.me]
    assert forgotten(world.views["p0"], missed) == [JOB]
    assert world.views["p0"].share(gone.me, JOB, 1) == (1, 0)


def test_a_sign_of_life_after_a_hint_does_not_make_others_forget_it() -> None:
    world = World(0, 1)
    world.send("word", 1)  # left to p1 …
    world.room["p1"] = 1
    world.tell("p1")  # … which may not have heard of it yet when it said this

    assert world.views["p0"].forget("p1") == [JOB]


def test_one_that_says_it_lives_twice_has_followed_the_hint() -> None:
    world = World(0, 1)
    world.send("word", 1)
    world.tell("p1")
    world.tell("p1")

    assert world.views["p0"].forget("p1") == []


def test_many_processes_tell_less_often() -> None:
    assert World(*[1] * 10).views["p0"].heartbeat == 2.0
    assert World(*[1] * 100).views["p0"].heartbeat == 5.0


def in_rounds(nonce: str, count: int, room: dict[str, int]) -> dict[str, int]:
    """As it reads: one for everybody, another for everybody that can …"""
    turn = sorted(filter(room.get, room), key=lambda name: (crc32(f"{nonce} {name}".encode()), name))
    shares = dict.fromkeys(sorted(turn), 0)
    while count and turn:
        for name in turn[:count]:
            shares[name] += 1
        count -= min(count, len(turn))
        turn = [name for name in turn if shares[name] < room[name]]
    return {name: share for name, share in shares.items() if share}


@given(
    nonce=st.text(max_size=3),
    count=st.integers(0, 60),
    room=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 12)),
)
def test_shares_are_what_rounds_would_give(nonce: str, count: int, room: dict[str, int]) -> None:
    assert share_out(nonce, count, room) == in_rounds(nonce, count, room)


def test_any_number_of_jobs_is_shared_out_at_once() -> None:
    shares = share_out("word", 10**15, {"a": 10**15, "b": 3, "c": 10**14})

    assert sum(shares.values()) == 10**15


def test_a_process_is_believed_about_a_bounded_number_of_types() -> None:
    view = WakeSharing("me", lambda: 0.0)
    for n in range(20):
        view.hear("other", [Hint(HintKind.ROOM, f"type {n} {k}", 1) for k in range(100)])

    assert sum(len(other.room) for other in view._others.values()) == 1_000


@given(
    told=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    room=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    count=st.integers(1, 30),
    nonce=st.text(max_size=8),
)
def test_whatever_was_told_no_fewer_wake_than_could(told: list[int], room: list[int], count: int, nonce: str) -> None:
    world = World(*told)
    world.room = dict(zip(world.room, room, strict=False))
    can = sum(world.room.values())

    woken = world.send(nonce, count).total()

    assert min(count, can) <= woken <= can
