"""What is going on around a call: the transaction that is open there."""

from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Protocol

from onward.errors import TransactionOpen


class OpenMark(Protocol):
    """A transaction as others see it."""

    @property
    def is_open(self) -> bool: ...


class NothingElse:
    """The mark of code that may write in its own transactions, and nowhere else."""

    is_open = True

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal


open_transaction: ContextVar[OpenMark | None] = ContextVar("onward_transaction", default=None)


def unmark(mark: Token[OpenMark | None]) -> None:
    """The block is left. Whoever leaves it in another task or thread than it was entered in has no mark to take away,
    and the one that stays behind is of a transaction that has ended.
    """
    with suppress(ValueError):
        open_transaction.reset(mark)


def refuse_inside_transaction(doing: str) -> None:
    """Raise TransactionOpen if an Onward transaction is open in this context."""
    mark = open_transaction.get()
    if isinstance(mark, NothingElse):
        raise TransactionOpen(f"{doing}: {mark.refusal}")
    if mark is not None and mark.is_open:
        raise TransactionOpen(
            f"{doing} without tx= while a transaction of Onward's is open here: pass tx=tx to join it, "
            "or call it after the block"
        )
