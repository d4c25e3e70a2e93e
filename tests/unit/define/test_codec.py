"""Values become JSON text and come back, or are refused with the job type and the field named."""

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from onward.crypto import MARK, is_sealed
from onward.define.codec import Codec, Limits
from onward.errors import DefinitionError, PayloadError


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Line:
    product: str
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)
    note: str | None = None
    size: Size = Size.SMALL


@dataclass
class Rejected:
    reason: str


class Point(msgspec.Struct):
    x: float
    y: float | None = None


class Url(TypedDict):
    url: str
    tags: list[str]


class Customer(BaseModel):
    name: str
    age: int = 0
    score: float | None = None


class Account(BaseModel):
    owner: Customer


class Square(msgspec.Struct, tag=True):
    side: int


class Circle(msgspec.Struct, tag=True):
    side: int


@dataclass
class WithCustomer:
    customer: Customer


class Plain:
    """Nothing that can be stored as JSON."""


def codec(kind: Any, *, part: str = "input", limits: Limits | None = None) -> Codec:
    return Codec(kind, job_type="orders.charge", part=part, limits=limits or Limits())


def refused(kind: Any, value: Any, *, limits: Limits | None = None) -> PayloadError:
    with pytest.raises(PayloadError) as refusal:
        codec(kind, limits=limits).encode(value)
    assert refusal.value.job_type == "orders.charge"
    assert refusal.value.part == "input"
    assert "'orders.charge'" in str(refusal.value)
    return refusal.value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order(7, [Line("tea", 2), Line("milk")], "fragile", Size.LARGE)),
        (Point, Point(1.5, -2.0)),
        (Point, Point(1.5)),
        (Url, {"url": "https://example.org/ż", "tags": ["a", "b"]}),
        (Customer, Customer(name="Ann", age=7)),
        (Account, Account(owner=Customer(name="Ann"))),
        (WithCustomer, WithCustomer(Customer(name="Ann"))),
        (list[Order], [Order(1), Order(2)]),
        (dict[str, int], {"a": 1}),
        (str, "text"),
        (int, 2**63),
        (int, -(2**200)),
        (float, 1e300),
        (bool, True),
        (bytes, b"\0\xff"),
        (None, None),
        (Any, {"a": [1, None, {"b": "c"}]}),
        (datetime, datetime(2030, 1, 1, tzinfo=UTC)),
        (date, date(2030, 1, 1)),
        (timedelta, timedelta(minutes=5)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Literal["a", "b"], "a"),
        (tuple[int, str], (1, "a")),
        (int | None, None),
        (Order | None, Order(1)),
        (Order | None, None),
        (Order | Rejected, Rejected("unknown")),
        (Order | Rejected | None, Order(3)),
        (Order | str, "just text"),
        (Square | Circle, Circle(3)),
        (Customer | Rejected, Customer(name="Ann")),
        (Customer | Rejected, Rejected("unknown")),
    ],
    ids=repr,
)
def test_a_value_comes_back_as_it_was(kind: Any, value: Any) -> None:
    each = codec(kind)

    back = each.decode(each.encode(value))

    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, float("1e400")])
@pytest.mark.parametrize(
    ("kind", "make", "field"),
    [
        (Point, lambda number: Point(1.0, number), "$.y"),
        (Any, lambda number: {"a": [1, number]}, "$.a[1]"),
        (Customer, lambda number: Customer(name="Ann", score=number), "$.score"),
        (float | None, lambda number: number, "$"),
    ],
    ids=["struct", "plain", "pydantic", "bare"],
)
def test_what_is_not_a_number_is_refused(number: float, kind: Any, make: Any, field: str) -> None:
    refusal = refused(kind, make(number))

    assert refusal.field == field


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        (Order, Order(1, [Line("tea"), Line("a\0b")]), "$.lines[1].product"),
        (Url, {"url": "\0", "tags": []}, "$.url"),
        (Customer, Customer(name="\0"), "$.name"),
        (str, "\0", "$"),
    ],
    ids=["dataclass", "typed-dict", "pydantic", "bare"],
)
def test_a_nul_character_is_refused(kind: Any, value: Any, field: str) -> None:
    refusal = refused(kind, value)

    assert (refusal.field, "NUL" in refusal.problem) == (field, True)


def test_a_nul_character_in_a_key_is_refused() -> None:
    refusal = refused(dict[str, int], {"a\0b": 1})

    assert "NUL" in refusal.problem


@pytest.mark.parametrize("text", ["a backslash before u0000: \\u0000", "null", '"null"', "\\\\u0000"])
def test_text_that_only_looks_like_nul_is_kept(text: str) -> None:
    assert codec(str).decode(codec(str).encode(text)) == text


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        (Order, Order(1, note="\ud800"), "$.note"),
        (Order, Order(1, [Line("tea"), Line("\udfff tail")]), "$.lines[1].product"),
        (str, "\ud800", "$"),
    ],
    ids=["dataclass", "nested", "bare"],
)
def test_a_lone_surrogate_is_refused(kind: Any, value: Any, field: str) -> None:
    refusal = refused(kind, value)

    assert (refusal.field, "surrogate" in refusal.problem) == (field, True)


def test_a_lone_surrogate_in_a_key_is_refused() -> None:
    refusal = refused(dict[str, int], {"\ud800": 1})

    assert "surrogate" in refusal.problem


def test_a_number_too_large_in_stored_text_is_refused() -> None:
    with pytest.raises(PayloadError) as refusal:
        codec(Point).decode('{"x": 1e400}')

    assert refusal.value.job_type == "orders.charge"


@pytest.mark.parametrize("levels", [101, 500, 100_000])
def test_what_is_nested_too_deep_is_refused(levels: int) -> None:
    deep: Any = []
    for _ in range(levels):
        deep = [deep]

    refusal = refused(Any, deep)

    assert "nested deeper than 100 levels" in refusal.problem


def test_what_is_nested_as_deep_as_allowed_is_kept() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]

    assert codec(Any).decode(codec(Any).encode(deep)) == deep


def test_what_is_wide_is_not_deep() -> None:
    wide = [[n] for n in range(1000)]

    assert codec(Any).decode(codec(Any).encode(wide)) == wide


def test_what_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    refused(Any, loop)


def test_a_payload_over_the_limit_is_refused_with_the_limit_named() -> None:
    refusal = refused(Order, Order(1, note="x" * 2 * 1024 * 1024))

    assert "2,097," in refusal.problem
    assert "1,048,576" in refusal.problem


def test_the_limit_counts_bytes_not_characters() -> None:
    limits = Limits(bytes=20)

    assert codec(str, limits=limits).encode("ż" * 9)
    refused(str, "ż" * 10, limits=limits)


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        (Order, Order("7"), "$.id"),  # type: ignore[arg-type]
        (Order, Order(1, [Line("tea", "two")]), "$.lines[0].count"),  # type: ignore[arg-type]
        (Order, Rejected("unknown"), "$"),
        (Point, Point("1"), "$.x"),  # type: ignore[arg-type]
        (Url, {"url": "x", "tags": "y"}, "$.tags"),
        (Url, {"url": "x"}, "$"),
        (int, "7", "$"),
        (Size, "medium", "$"),
        (Order | Rejected, Line("tea"), "$"),
        (Order | Rejected, Rejected(7), "$.reason"),  # type: ignore[arg-type]
        (Order | Rejected, "text", "$"),
        (Order | None, Order("7"), "$.id"),  # type: ignore[arg-type]
        (Customer, {"name": 7}, "$.name"),
        (WithCustomer, {"customer": {"name": "Ann", "age": "x"}}, "$.customer.age"),
        (Account, {"owner": {"name": "Ann", "age": "x"}}, "$.owner.age"),
    ],
    ids=repr,
)
def test_a_value_of_the_wrong_shape_is_refused_with_its_field(kind: Any, value: Any, field: str) -> None:
    assert refused(kind, value).field == field


def test_a_value_that_json_has_no_form_for_is_refused() -> None:
    refusal = refused(Any, {"a": Plain()})

    assert "Plain" in refusal.problem


@pytest.mark.parametrize("text", ["", "{", '{"id": 1} tail', "\ufeff1", "nul", '{"id": 1,}'])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(PayloadError) as refusal:
        codec(Order, part="output").decode(text)

    assert "output of job type 'orders.charge'" in str(refusal.value)


def test_stored_text_nested_without_end_is_refused() -> None:
    with pytest.raises(PayloadError):
        codec(Any).decode("[" * 100_000 + "]" * 100_000)


def test_bytes_that_are_not_unicode_are_refused() -> None:
    with pytest.raises(PayloadError):
        codec(str).decode(b'"\xff"')


def test_an_unknown_field_is_ignored_so_that_newer_writers_may_add_some() -> None:
    assert codec(Order).decode('{"id": 1, "added": true}') == Order(1)


@pytest.mark.parametrize("kind", [Plain, Plain | None], ids=repr)
def test_a_type_that_cannot_be_stored_is_refused_when_it_is_declared(kind: Any) -> None:
    with pytest.raises(DefinitionError) as refusal:
        codec(kind)

    assert "orders.charge: input type" in refusal.value.problems[0]


def test_alternatives_that_look_alike_are_refused_when_they_are_declared() -> None:
    @dataclass
    class Twin:
        reason: str

    with pytest.raises(DefinitionError) as refusal:
        codec(Rejected | Twin)

    assert "cannot be told apart" in refusal.value.problems[0]


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_any_json_comes_back_as_it_was(value: Any) -> None:
    assume(not is_sealed(value))  # Hypothesis finds the mark in our source
    each = codec(Any)

    back = each.decode(each.encode(value))

    assert back == value


@given(
    st.builds(
        Order,
        st.integers(-(2**63), 2**63 - 1),
        st.lists(st.builds(Line, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))),
        st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        st.sampled_from(Size),
    )
)
def test_any_order_comes_back_as_it_was(order: Order) -> None:
    each = codec(Order | Rejected)

    assert each.decode(each.encode(order)) == order


@given(st.text(st.characters()))
@example("\ud800")
@example("\0")
@example(MARK)
def test_any_text_is_either_kept_exactly_or_refused(text: str) -> None:
    each = codec(str)

    try:
        stored = each.encode(text)
    except PayloadError:
        surrogates = [character for character in text if "\ud800" <= character <= "\udfff"]
        assert "\0" in text or surrogates or text.startswith(MARK)
    else:
        assert each.decode(stored) == text
        assert "\0" not in stored
