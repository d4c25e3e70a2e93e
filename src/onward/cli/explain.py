"""`onward explain`: why a job is where it is."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from onward.cli.failures import CommandFailed
from onward.cli.options import Json, Place, spread
from onward.cli.place import as_id, with_app
from onward.cli.printing import print_json, print_line, print_table
from onward.client.app import Onward
from onward.client.words import moment
from onward.errors import ChainNotFound
from onward.operating import Explanation


@spread
def explain(
    place: Place,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="A job, or a chain: then the job it has come to.", show_default=False)
    ],
    json: Json = False,
) -> None:
    """Say in one sentence why a job is where it is, then the facts, then what else would stand in its way.

    With --app also whether its type has a handler, how often it is tried, and what is secret in an error.
    """

    async def look(app: Onward) -> Explanation:
        try:
            return await app.explain(as_id(id))
        except ChainNotFound:
            raise CommandFailed(f"there is no chain or job {id}") from None

    told = with_app(place, look)
    if json:
        print_json(told)
        return
    print_line(Text(told.sentence, style="bold"))
    print_line("")
    facts = {"job": told.job_id, "why": told.why, **told.facts}
    print_table(("fact", ""), [(name, _shown(value)) for name, value in facts.items() if value not in (None, (), [])])
    for sentence in told.also:
        print_line(f"\nalso: {sentence}")


def _shown(value: Any) -> object:
    if isinstance(value, datetime):
        return moment(value)
    return ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
