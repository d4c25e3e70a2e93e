"""Fields of a hash: JSON, except text that could not be taken for JSON."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.flow import FlowPayloadError
from onward.flow.attributes import Attributes, as_json, as_text

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@dataclass
class Person:
    name: str
    age: int | str
    nick: str | None = None


@given(PLAIN)
def test_every_value_comes_back(value: Any) -> None:
    assert msgspec.json.decode(as_json(as_text(msgspec.json.encode(value)))) == value


@pytest.mark.parametrize("text", ["7", "null", "true", '"', "{}", "[1]", "ann", "", " ", "t", "-", "1e5", '"x"', "\n"])
def test_text_stays_text(text: str) -> None:
    attributes = Attributes(Person, flow="access", stage="check", part="result")
    fields, _ = attributes.write(Person(text, text))

    assert attributes.read(fields) == Person(text, text)
    assert fields["name"] == text or fields["name"].startswith('"')


def test_plain_text_is_stored_as_it_is() -> None:
    fields, _ = Attributes(Person, flow="access", stage="check", part="result").write(Person("ann lee", 7))

    assert fields == {"name": "ann lee", "age": "7", "nick": "null"}


def test_a_refusal_names_stage_and_field() -> None:
    attributes = Attributes(Person, flow="access", stage="check", part="result")

    with pytest.raises(FlowPayloadError, match="result of stage 'check' of flow 'access' at name") as refused:
        attributes.write(Person(7, 7))  # type: ignore[arg-type]
    assert (refused.value.stage, refused.value.field) == ("check", "name")
    with pytest.raises(FlowPayloadError, match="missing required field `age`"):
        attributes.read({"name": "ann"})


def test_results_without_a_type_are_looked_at_when_they_come() -> None:
    attributes = Attributes(Any, flow="access", stage="check", part="result")

    assert attributes.write({"a": [1]}) == ({"a": "[1]"}, '{"a":[1]}')
    with pytest.raises(FlowPayloadError, match="list has no fields to store"):
        attributes.write([1])
    with pytest.raises(FlowPayloadError, match="at done: Onward has a field of that name"):
        attributes.write({"done": True})
