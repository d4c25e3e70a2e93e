"""Secret fields are found in every kind of payload; what is sealed is read back where it belongs, and nowhere else."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from onward.crypto import Encryption, Secret
from onward.define.attempt import Attempt
from onward.define.codec import Codec
from onward.define.job_type import JobType, job
from onward.define.outcome import Outcome
from onward.define.registry import RegisteredType, Registry
from onward.define.secrets import Secrets, redacted, secrets_of
from onward.define.slice import Slice
from onward.errors import (
    DefinitionError,
    FlowPayloadError,
    PayloadError,
    PayloadNotEncrypted,
    PayloadTampered,
    QueueDataError,
    UnknownKey,
)
from onward.flow.attributes import Attributes
from onward.lifecycle.effects import describe
from onward.model import new_id
from onward.options import cut
from onward.queue.payload import Payload

ENCRYPTION = Encryption({"a": Encryption.new_key()})
SECRETS = Encryption({"a": Encryption.new_key()}, only_secrets=True)
CARD = "4111-1111-1111-1111"
T = TypeVar("T")
Token = NewType("Token", str)


@dataclass
class Card:
    number: Annotated[str, Secret]
    holder: str = "Ada"


@dataclass
class Order:
    id: int
    cards: list[Card] = field(default_factory=list)
    pin: Annotated[int | None, Secret] = None
    before: "Order | None" = None


class Renamed(msgspec.Struct, rename="camel"):
    card_number: Annotated[str, Secret]
    order_id: int = 1


class Listed(msgspec.Struct, array_like=True):
    number: Annotated[str, Secret]


class Holder(msgspec.Struct):
    listed: Listed
    id: int = 1


class Pair(NamedTuple):
    number: Annotated[str, Secret]
    id: int


class Typed(TypedDict):
    id: int
    token: NotRequired[Annotated[Token, Secret]]


class Model(BaseModel):
    id: int
    token: Annotated[str, Secret]
    more: list[Annotated[str, Secret]] = []


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True, populate_by_name=True)
    token: Annotated[str, Secret] = Field(serialization_alias="theToken")


class Rooted(RootModel[Annotated[str, Secret]]):
    pass


@dataclass
class Box(Generic[T]):
    content: T


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Order, Secrets(frozenset({"number", "pin"}))),
        (Order | None, Secrets(frozenset({"number", "pin"}))),
        (dict[str, list[Card]], Secrets(frozenset({"number"}))),
        (Box[Card], Secrets(frozenset({"number"}))),
        (Renamed, Secrets(frozenset({"cardNumber"}))),
        (Holder, Secrets(frozenset({"listed"}))),
        (Pair, Secrets(frozenset(), True)),
        (Typed, Secrets(frozenset({"token"}))),
        (Model, Secrets(frozenset({"token", "more"}))),
        (Aliased, Secrets(frozenset({"token", "theToken"}))),
        (Rooted, Secrets(frozenset(), True)),
        (Annotated[str, Secret], Secrets(frozenset(), True)),
        (list[Annotated[str, Secret]], Secrets(frozenset(), True)),
        (Annotated[str, "no secret"], None),
        (int, None),
        (dict[str, Any], None),
        (None, None),
        (Any, None),
    ],
)
def test_secret_fields_are_found_in_a_type(kind: Any, expected: Secrets | None) -> None:
    assert secrets_of(kind) == expected


def test_a_model_that_resolved_its_own_types_is_looked_at() -> None:
    class Inner(BaseModel):
        token: Annotated[str, Secret]

    class Outer(BaseModel):
        inner: "Inner"

    Outer.model_rebuild()

    assert secrets_of(Outer) == Secrets(frozenset({"token"}))


def test_a_whole_payload_is_marked_where_it_is_handled() -> None:
    whole = Secrets(frozenset(), everything=True)

    @job("text")
    async def text(attempt: Attempt[Annotated[str, Secret]]) -> Annotated[str, Secret]: ...

    @job("outcome")
    def outcome(attempt: Attempt[list[Annotated[str, Secret]]]) -> Outcome[Annotated[str, Secret] | None]: ...

    declared = JobType("declared", input=Annotated[str, Secret], output=Annotated[int, Secret])

    @declared.handler
    async def handle(attempt: Attempt[str]) -> int: ...

    for kind in (text, outcome, declared):
        guard = Registry([kind])[kind.name].guard
        assert guard is not None
        assert guard._secrets == {"input": whole, "output": whole}


def test_a_secret_is_masked_wherever_it_stands() -> None:
    secrets = secrets_of(Order)
    assert secrets is not None
    plain = {"id": 1, "cards": [{"number": CARD, "holder": "Ada"}], "pin": 12345, "before": {"id": 2, "pin": None}}

    assert secrets.masked(plain) == {
        "id": 1,
        "cards": [{"number": "***", "holder": "Ada"}],
        "pin": "***",
        "before": {"id": 2, "pin": "***"},
    }
    assert secrets.texts(plain) == {CARD, "12345"}


@pytest.mark.parametrize("secret", ["hunter2", 'it\'s "so"\n', "naïve pässwörd"])
def test_a_secret_is_found_in_other_texts_however_it_is_spelled(secret: str) -> None:
    spelled = [secret, repr(secret), ascii(secret), json.dumps(secret), msgspec.json.encode(secret).decode()]
    spelled += [quote(secret), quote(secret, safe=""), quote_plus(secret)]
    spelled += [repr(secret.encode()), repr(json.dumps(secret)), repr(json.dumps({secret: "'"}))]

    assert redacted(" ".join(spelled), {secret}).count("***") == len(spelled)


def test_a_secret_of_several_lines_is_found_where_several_exceptions_are_told_of() -> None:
    secret = "-----BEGIN KEY-----\nMIIabc\nxyz=\n-----END KEY-----"

    told = redacted(describe(ExceptionGroup("many", [ValueError(f"bad key {secret}")])).traceback, {secret})

    assert "    | ValueError: bad key ***" in told
    assert not any(part in told for part in ("MIIabc", "xyz"))


@pytest.mark.parametrize("keep_end", [False, True])
@pytest.mark.parametrize("before", range(50, 70))
def test_nothing_is_left_of_a_secret_that_was_cut_in_two(before: int, keep_end: bool) -> None:
    text = "-" * before + "abcdefghij" + "-" * before

    left = redacted(cut(text, 100, keep_end=keep_end), {"abcdefghij"})

    assert "abcd" not in left
    assert "ghij" not in left
    assert "characters in all" in left


def test_secrets_are_known_as_handlers_print_them() -> None:
    @dataclass
    class Person:
        token: Annotated[bytes, Secret]
        born: Annotated[datetime, Secret]
        scores: Annotated[dict[str, int], Secret]

    person = Person(b"hunter2\xff", datetime(1987, 3, 4, 5, 6, tzinfo=UTC), {"by Ada": 12345})
    guard = made(Person).guard
    assert guard is not None

    left = redacted(f"{person} {person.born}", guard.secrets_in(person))

    assert not any(part in left for part in ("hunter2", "1987-03-04", "Ada", "12345"))


class Pin(BaseModel):
    pin: Annotated[str, Secret]

    @field_validator("pin")
    @classmethod
    def short(cls, pin: str) -> str:
        if len(pin) > 4:
            raise ValueError(f"{pin} is too long")
        return pin


@dataclass
class Choice:
    colour: Annotated[Literal["red", "blue"], Secret]


@pytest.mark.parametrize("part", ["input", "output"])
@pytest.mark.parametrize("wrong", [Choice("hunter2"), Pin.model_construct(pin="hunter2")])  # type: ignore[arg-type]
def test_what_does_not_fit_is_refused_without_its_secrets(wrong: Any, part: str) -> None:
    codec = getattr(made(type(wrong)), part)
    stored = json.dumps({"colour": "hunter2"} if isinstance(wrong, Choice) else {"pin": "hunter2"})

    for attempt in (lambda: codec.encode(wrong, new_id()), lambda: codec.decode(stored, new_id())):
        with pytest.raises(PayloadError, match=r"\*\*\*") as refused:
            attempt()
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("wrong", [Choice("hunter2"), Pin.model_construct(pin="hunter2")])  # type: ignore[arg-type]
def test_nor_do_queues_and_flows_show_them(wrong: Any) -> None:
    payload = Payload[Any](type(wrong), queue_name="q")
    attributes = Attributes(type(wrong), flow="f", stage="s", part="input")

    for write in (payload.encode, attributes.write):
        with pytest.raises((QueueDataError, FlowPayloadError)) as refused:
            write(wrong)
        assert "hunter2" not in f"{refused.value} {refused.value.__cause__}"


def made(kind: Any, encryption: Encryption | None = None, **options: Any) -> RegisteredType:
    return Registry([JobType("it", input=kind, output=kind, **options)], encryption=encryption)["it"]


VALUES = [
    (str, "text"),
    (None, None),
    (dict[str, Any], {"a": [1, None, "x"]}),
    (Order, Order(1, [Card(CARD)], 1234, Order(2))),
    (Renamed, Renamed(CARD)),
    (Holder, Holder(Listed(CARD))),
    (Pair, Pair(CARD, 7)),
    (Typed, {"id": 1, "token": CARD}),
    (Model, Model(id=1, token=CARD, more=["abcd"])),
    (Rooted, Rooted(CARD)),
    (Annotated[str, Secret], CARD),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
@pytest.mark.parametrize("encryption", [ENCRYPTION, SECRETS, None])
def test_what_is_written_is_read_back(kind: Any, value: Any, encryption: Encryption | None) -> None:
    registered, id = made(kind, encryption), new_id()

    text = registered.input.encode(value, id)

    assert registered.read_input(text, 1, id) == value
    assert encryption is None or CARD not in text
    assert encryption is not ENCRYPTION or text.startswith('"onward:sealed:1:a:')


def test_only_secrets_leaves_the_rest_to_be_read() -> None:
    text = made(Order, SECRETS).input.encode(Order(1, [Card(CARD)], 1234), new_id())

    plain = msgspec.json.decode(text)
    assert (plain["id"], plain["cards"][0]["holder"]) == (1, "Ada")
    assert plain["pin"].startswith("onward:sealed:")


@pytest.mark.parametrize("encryption", [ENCRYPTION, SECRETS])
def test_a_payload_that_was_moved_is_refused(encryption: Encryption) -> None:
    registered, id = made(Card, encryption), new_id()
    assert registered.output is not None
    text = registered.input.encode(Card(CARD), id)

    with pytest.raises(PayloadTampered, match="moved here from another job"):
        registered.read_input(text, 1, new_id())
    with pytest.raises(PayloadTampered):
        registered.read_output(text, 1, id)
    with pytest.raises(PayloadTampered):
        Registry([JobType("other", input=Card, output=str)], encryption=encryption)["other"].read_input(text, 1, id)


def test_two_secrets_of_one_payload_cannot_change_places() -> None:
    registered, id = made(Order, SECRETS), new_id()
    plain = msgspec.json.decode(registered.input.encode(Order(1, [Card("one!"), Card("two!")]), id))

    plain["cards"].reverse()

    with pytest.raises(PayloadTampered):
        registered.read_input(msgspec.json.encode(plain), 1, id)


@pytest.mark.parametrize("kind", [str, Any, int, Card, dict[str, Any]])
def test_a_type_without_the_key_refuses_what_is_encrypted(kind: Any) -> None:
    id = new_id()
    text = made(Any, ENCRYPTION).input.encode({}, id)
    other = Encryption({"b": Encryption.new_key()})

    for version, encryption in ((1, None), (2, None), (2, other)):
        registered = made(kind, encryption, version=2)
        with pytest.raises(UnknownKey, match="encrypted with key 'a', which is not here") as refused:
            registered.read_input(f" {text}", version, id)
        assert refused.value.key_id == "a"
        assert isinstance(refused.value, PayloadError)


def test_a_type_with_secrets_does_not_take_an_encrypted_one_for_a_plain_one() -> None:
    id = new_id()
    text = made(Card, SECRETS).input.encode(Card(CARD), id)

    with pytest.raises(UnknownKey):
        made(Card).read_input(text, 1, id)
    assert made(Card).read_input(made(Card).input.encode(Card(CARD), id), 1, id) == Card(CARD)


def test_text_that_looks_encrypted_is_refused_when_it_is_written() -> None:
    for kind, value, encryption in [
        (str, "onward:sealed:1:a:AAAA", None),
        (str, "onward:sealed:1:a:AAAA", ENCRYPTION),
        (Card, Card("x", holder="onward:sealed:1:a:AAAA"), SECRETS),
        (Card, Card("onward:sealed:1:a:AAAA"), None),
    ]:
        with pytest.raises(PayloadError):
            made(kind, encryption).input.encode(value, new_id())


def test_plain_text_from_before_is_read_unless_it_is_not_accepted() -> None:
    id, key = new_id(), Encryption.new_key()
    plain = made(Card, None).input.encode(Card(CARD), id)

    for only_secrets in (False, True):
        lenient, strict = (
            Encryption({"a": key}, only_secrets=only_secrets, accept_plain=accept) for accept in (True, False)
        )
        assert made(Card, lenient).read_input(plain, 1, id) == Card(CARD)
        with pytest.raises(PayloadNotEncrypted):
            made(Card, strict).read_input(plain, 1, id)
        written = made(Card, lenient).input.encode(Card(CARD), id)
        assert made(Card, strict).read_input(written, 1, id) == Card(CARD)


def test_an_older_version_is_decrypted_before_it_is_brought_up() -> None:
    @dataclass
    class Old:
        secret: Annotated[str, Secret]

    for encryption in (ENCRYPTION, SECRETS):
        id = new_id()
        text = made(Old, encryption).input.encode(Old(CARD), id)
        new = JobType("it", input=Order, output=Card, version=2)
        new.upcast(1)(lambda plain: {"id": 7, "cards": [{"number": plain["secret"]}]})
        new.upcast_output(1)(lambda plain: {"number": plain["secret"]})
        registered = Registry([new], encryption=encryption)["it"]
        old_output = made(Old, encryption).output
        assert old_output is not None

        assert registered.read_input(text, 1, id) == Order(7, [Card(CARD)])
        assert registered.read_output(old_output.encode(Old(CARD), id), 1, id) == Card(CARD)


def test_a_type_says_whether_it_is_encrypted_or_the_app_does() -> None:
    own = Encryption({"own": Encryption.new_key()})
    types = [
        JobType("as the app", input=str, output=str),
        JobType("own", input=str, output=str, encryption=own),
        JobType("not", input=str, output=str, encryption=False),
    ]

    registry = Registry(types, encryption=ENCRYPTION)

    stored = [registry[one.name].input.encode("text", new_id())[:19] for one in types]
    assert stored == ['"onward:sealed:1:a:', '"onward:sealed:1:ow', '"text"']


def test_a_type_without_encryption_and_secrets_has_plain_codecs_and_no_guard() -> None:
    plain, secret = made(int), made(Card)

    assert (type(plain.input), plain.guard) == (Codec, None)
    assert secret.guard is not None


def test_what_is_no_encryption_is_refused() -> None:
    orders = Slice("orders")

    for decorate in (job, orders.job):
        with pytest.raises(DefinitionError, match=r"encryption='key': expected an onward\.crypto\.Encryption"):

            @decorate("ship", encryption="key")  # type: ignore[call-overload, untyped-decorator]
            async def ship(attempt: Attempt[int]) -> None: ...


def test_a_chain_to_start_does_not_show_its_input() -> None:
    assert CARD not in repr(JobType("it", input=Card, output=str).with_input(Card(CARD)))
