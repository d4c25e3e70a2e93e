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


def refuse_inside_transaction(doing: str, *, joins: bool = True) -> None:
    """Raise TransactionOpen if an Onward transaction is open in this context; `joins`: there is a tx= to join it."""
    mark = open_transaction.get()
    if isinstance(mark, NothingElse):
        raise TransactionOpen(f"{doing}: {mark.refusal}")
    if mark is not None and mark.is_open:
        how, else_ = (" without tx=", "pass tx=tx to join it, or ") if joins else ("", "")
        raise TransactionOpen(
            f"{doing}{how} while a transaction of Onward's is open here: {else_}call it after the block"
        )
