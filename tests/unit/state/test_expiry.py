"""Which leases in a SQLite file may be taken back."""

from onward.state.sqlite.expiry import ExpiredLease, Watched

GONE = ExpiredLease(7, 1, 1_000)


class Reaper:
    """Looks with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watched = Watched(lambda: self.now)

    def look(self, *leases: ExpiredLease, waited: float = 0.0, later: float = 0.1) -> list[str]:
        self.now += later
        return self.watched.ripe(leases, waited=waited)

    def looks_until_taken(self, lease: ExpiredLease = GONE, *, later: float = 0.1) -> int:
        return next(n for n in range(1, 100) if self.look(lease, later=later))


def test_a_lease_that_has_run_out_is_taken_back_when_the_lock_was_free_several_times() -> None:
    reaper = Reaper()

    assert reaper.looks_until_taken() == 6
    assert reaper.now < 1.0


def test_looks_in_quick_succession_count_as_one() -> None:
    reaper = Reaper()

    assert reaper.looks_until_taken(later=0.02) > 20


def test_a_reaper_that_had_to_wait_has_learnt_nothing() -> None:
    reaper = Reaper()

    assert [reaper.look(GONE, waited=1.0) for _ in range(50)] == [[]] * 50

    assert reaper.looks_until_taken() == 5


def test_a_lease_that_was_renewed_meanwhile_is_watched_anew() -> None:
    reaper = Reaper()
    for _ in range(5):
        assert reaper.look(GONE) == []

    assert reaper.look(GONE._replace(until=2_000)) == []
    assert reaper.look(GONE._replace(attempt=2)) == []


def test_a_lease_that_its_guardian_let_go_of_is_taken_back_at_once() -> None:
    assert Reaper().look(GONE, ExpiredLease("other", 1, 0), waited=1.0) == ["other"]


def test_what_is_no_longer_seen_is_forgotten() -> None:
    reaper = Reaper()
    reaper.look(*(ExpiredLease(str(n), 1, 1) for n in range(100)))

    reaper.look(GONE, later=100.0)

    assert len(reaper.watched._seen) == 1
