"""What is believed of a payload that anybody may have written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.notify.contract import Hint, HintKind
from onward.notify.encoding import MOST_JOBS, RationedReader, encode_hints, is_nonce, read_payload

HINT = st.builds(
    Hint,
    st.sampled_from([kind for kind in HintKind if kind is not HintKind.UNKNOWN]),
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=60),
    st.integers(1, MOST_JOBS),
)


@given(st.lists(HINT, unique_by=lambda hint: (hint.kind, hint.key), max_size=50))
def test_what_we_write_is_read_as_it_was(hints: list[Hint]) -> None:
    read = [read_payload(payload) for payload in encode_hints(hints, "#word")]

    assert [hint for _, found in read for hint in found] == hints
    assert {heading for heading, _ in read} <= {"#word"}


@given(st.text() | st.binary())
def test_whatever_comes_in_can_be_read(payload: str | bytes) -> None:
    heading, hints = read_payload(payload)

    assert len(heading) <= 64
    assert all(0 <= hint.count <= MOST_JOBS and len(hint.key) <= 255 for hint in hints)


@pytest.mark.parametrize(
    "line", ["s:mail", "s-1:mail", "s+5:mail", "s 7:mail", "s1_0:mail", "s٣:mail", "s1e9:mail", "s0:mail", "s1",
             "?1:mail", "q1:mail", ":mail", "", "s9999999999:mail", f"e1:{'x' * 65}", f"s1:{'x' * 256}", "S1:mail"]
)  # fmt: skip
def test_a_line_that_is_not_as_we_write_it_is_left_out(line: str) -> None:
    assert read_payload(f"#word\n{line}\nl1:job") == ("#word", [Hint(HintKind.LOST, "job")])


def test_no_hint_stands_for_more_than_a_listener_can_be_woken_for() -> None:
    lines = "\n".join(["s999999999:mail", *["s700:post"] * 3])

    _, hints = read_payload(f"#word\n{lines}")

    assert hints == [Hint(HintKind.READY, "mail", MOST_JOBS), Hint(HintKind.READY, "post", MOST_JOBS)]


@pytest.mark.parametrize("payload", [b"\xff\xfe\nl1:job", "x" * 65 + "\n", b"#word\nl1:job" + b"\n" * 8_000])
def test_what_is_too_long_or_no_text_is_nothing(payload: str | bytes) -> None:
    assert read_payload(payload) == ("", [])


def test_a_word_is_hexadecimal() -> None:
    assert is_nonce("00ff00ff00ff00ff", 16)
    assert not any(is_nonce(text, 16) for text in ("", "accounts", "00FF00FF00FF00FF", "0" * 15, "0" * 17, "٣" * 16))


def test_no_more_is_read_than_there_is_time_for() -> None:
    now, passed_over = 0.0, list[None]()
    reader = RationedReader(lambda: passed_over.append(None), per_second=100, now=lambda: now)
    assert sum(reader.read("#word\ns1:mail")[0] == "#word" for _ in range(1_000)) == 50
    assert len(passed_over) == 950

    now += 0.5

    assert sum(reader.read(b"#word\ns1:mail")[0] == "#word" for _ in range(1_000)) == 25
