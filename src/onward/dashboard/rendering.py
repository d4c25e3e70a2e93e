"""From what was read to HTML. Whatever comes from elsewhere is escaped, always."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from onward.client.words import age, in_short, lasted, state_of
from onward.dashboard import charts, picture, timeline

_FOLDER = Path(__file__).parent / "templates"
LIVE = "live_"
"""How the blocks of a template begin that are sent again when they change."""
_LONGEST_PAYLOAD = 100_000
_CHANGING = re.compile(r"(?<= data-ago>)[^<]*|<time data-taken[^<]*</time>")


class Renderer:
    """Templates, with what all of them can use."""

    def __init__(self) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters.update(
            number=number,
            time=time,
            ago=ago,
            taken=taken,
            since=since,
            span=seconds,
            pretty=pretty,
            state=state_of,
            short=in_short,
        )
        self._templates.globals.update(charts=charts, picture=picture, timeline=timeline)

    def page(self, template: str, shown: Mapping[str, Any]) -> str:
        """A whole page."""
        return self._templates.get_template(template).render(self._with_macros(shown))

    def live(self, template: str, shown: Mapping[str, Any]) -> dict[str, str]:
        """The live parts of a page, by the id of the element each is in."""
        found = self._templates.get_template(template)
        context = found.new_context(self._with_macros(shown))
        return {
            name.replace("_", "-"): "".join(block(context))
            for name, block in found.blocks.items()
            if name.startswith(LIVE)
        }

    @staticmethod
    def unchanging(html: str) -> str:
        """A part without what changes by itself: when it was read, and how long ago things were. The script knows."""
        return _CHANGING.sub("", html)

    def _with_macros(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        return {**shown, "ui": self._templates.get_template("ui.html").make_module(dict(shown))}


def number(value: float) -> str:
    """Grouped by thousands.

    >>> number(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def time(moment: datetime | None) -> Markup:
    """An instant, which the script turns to the reader's zone; without it, in UTC."""
    if moment is None:
        return Markup('<span class="none">—</span>')
    utc = moment.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="milliseconds").replace("+00:00", "Z"), f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    )


def taken(moment: datetime) -> Markup:
    """When a page was read, which the script keeps true."""
    return _marked(time(moment), "taken")


def since(moment: datetime) -> Markup:
    """When the database was first seen not to answer; the script finds it."""
    return _marked(time(moment), "since")


def _marked(shown: Markup, mark: str) -> Markup:
    return Markup(str(shown).replace("<time ", f"<time data-{mark} ", 1))


def ago(moment: datetime | None) -> Markup:
    """How long ago, or in how long; the instant is shown on hovering."""
    if moment is None:
        return Markup('<span class="none">—</span>')
    utc = moment.astimezone(UTC)
    told = age(moment)
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(
        utc.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        f"{utc:%Y-%m-%d %H:%M:%S} UTC",
        told if told.startswith("in ") else f"{told} ago",
    )


def seconds(value: timedelta | float | None) -> str:
    """How long something takes, as short as can be said.

    >>> [seconds(0.0042), seconds(1.26), seconds(timedelta(minutes=2))]
    ['4 ms', '1.3 s', '2m']
    """
    if value is None:
        return "—"
    return lasted(value if isinstance(value, timedelta) else timedelta(seconds=value))


def pretty(value: Any) -> str:
    """A payload as JSON on several lines, cut where it is very long."""
    try:
        text = json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    if len(text) <= _LONGEST_PAYLOAD:
        return text
    return f"{text[:_LONGEST_PAYLOAD]}\n… ({len(text):,} characters in all)"
