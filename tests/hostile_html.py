"""Texts that would be elements or scripts if anybody forgot to escape them, and a look at pages for those."""

from html.parser import HTMLParser
from typing import ClassVar

MARK = "xss7"
"""In each of them, so that it is found wherever it ends up."""

_TAGS = ("script", "img", "svg", "iframe", "object", "embed", "a", "body", "input", "details", "video", "audio", "math",
         "form", "base", "link", "meta", "style", "marquee", "template")  # fmt: skip
_EVENTS = ("onerror", "onload", "onclick", "onfocus", "ontoggle", "onmouseover", "onanimationstart", "onpointerenter",
           "onbegin", "onpageshow")  # fmt: skip
_SCHEMES = ("javascript:", "JaVaScRiPt:", "java\tscript:", "data:text/html,", "vbscript:", " javascript:")
_ENDS = ("</textarea>", "</title>", "</script>", "</style>", "-->", "]]>", "</pre>", "</code>", '">', "'>", "</svg>",
         "</template>", "</option></select>", "</noscript>", "{{ '</div>' }}")  # fmt: skip
_ODD = (
    "{{ 7 * 7 }}" + MARK, "{% raw %}" + MARK, "${7*7}" + MARK, "<" + MARK, MARK + ">", "&lt;script&gt;" + MARK,
    "&#60;img src=x onerror=" + MARK + "()&#62;", "\u2028<script>" + MARK + "()</script>", "<\u0130mg src=x " + MARK,
    "＜script＞" + MARK + "()＜/script＞", "<scr<script>ipt>" + MARK + "()</script>", "<svg/onload=" + MARK + "()>",
    "<!--<script>" + MARK + "()</script>-->", "<![CDATA[<script>" + MARK + "()</script>]]>", "<?xml " + MARK + "?>",
    "' onfocus=" + MARK + "() autofocus='", '" onfocus=' + MARK + '() autofocus="', "` onfocus=" + MARK + "()",
    "\" style=\"background:url(javascript:" + MARK + "())", "'-" + MARK + "()-'", '";' + MARK + "();//",
    "\\u003cscript\\u003e" + MARK + "()", "%3Cscript%3E" + MARK + "()%3C/script%3E",
    "<math><mi//xlink:href='data:x," + MARK,
    "<table background=javascript:" + MARK + "()>", "<div style=width:expression(" + MARK + "())>",
    "<x contenteditable onblur=" + MARK + "()>", "<img src=x:" + MARK + " onerror=1>", "event: parts\ndata: " + MARK,
    "\r\n\r\n<script>" + MARK + "()</script>", "|safe" + MARK, "<a href=//evil.example>" + MARK,
)  # fmt: skip


def texts() -> list[str]:
    """All of them."""
    found = [f"<{tag} src=x href=javascript:{MARK}() onerror={MARK}()>" for tag in _TAGS]
    found += [f'<img src=x {event}="{MARK}()">' for event in _EVENTS]
    found += [f"x' {event}='{MARK}()" for event in _EVENTS]
    found += [f'x" {event}="{MARK}()" x="' for event in _EVENTS]
    found += [f"<svg><animate {event}={MARK}() attributeName=x dur=1s></svg>" for event in _EVENTS]
    found += [f"{scheme}{MARK}()" for scheme in _SCHEMES]
    found += [f'<a href="{scheme}{MARK}()">x</a>' for scheme in _SCHEMES]
    found += [f"<form action='{scheme}{MARK}()'><button>x" for scheme in _SCHEMES]
    found += [f"{end}<script>{MARK}()</script>" for end in _ENDS]
    found += [f"{end}<img src=x onerror={MARK}()>" for end in _ENDS]
    found += [f"<{tag.upper()}\n/{event}\n=\n{MARK}()//" for tag, event in zip(_TAGS, _EVENTS * 2, strict=True)]
    found += [f"<{tag} {event}={MARK}`1`>" for tag in ("p", "div", "button") for event in _EVENTS]
    found += [f"{end}<a autofocus onfocus={MARK}()>" for end in _ENDS]
    found += [f"<{tag}/{MARK}" for tag in _TAGS]
    found += [f"<iframe srcdoc='{tag}{MARK}'>" for tag in ("<b>", "&lt;script&gt;", "x")]
    found += list(_ODD)
    return found


class _Look(HTMLParser):
    """Finds what a hostile text has become, other than text or the value of a harmless attribute."""

    _VALUES: ClassVar = {"title", "aria-label", "value", "placeholder", "data-at", "class", "datetime", "id", "for"}
    """Attributes that are only ever text. `id` and `class` are ours, and so may not have it."""
    _LINKS: ClassVar = {"href", "action", "formaction", "src"}
    _KNOWN: ClassVar = {
        "html", "head", "meta", "title", "link", "script", "body", "a", "header", "svg", "path", "span", "nav", "ul",
        "li", "form", "label", "input",
        "kbd", "button", "main", "h1", "h2", "h3", "p", "datalist", "option", "select", "div",
        "table", "thead", "tbody", "tfoot", "caption", "tr", "th", "td", "time", "footer", "dialog", "dl", "dt", "dd",
        "section", "article", "details", "summary", "pre", "code", "strong", "em", "small", "textarea", "g", "rect",
        "line", "polyline", "polygon", "circle", "ellipse", "text", "tspan", "defs", "marker", "desc", "figure",
        "figcaption", "br", "hr", "ol", "fieldset", "legend", "abbr", "progress", "meter", "mark", "i",
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.found = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self._KNOWN or MARK in tag:
            self.problems.append(f"<{tag}>")
        for name, value in attrs:
            said = value or ""
            if name.startswith("on") or name in ("style", "srcdoc") or MARK in name:
                self.problems.append(f"<{tag} {name}={said}>")
            if name in self._LINKS and not said.startswith(("./", "../", "?", "#")) and said != "":
                self.problems.append(f"<{tag} {name}={said}>")
            if MARK in said and (name not in self._VALUES | self._LINKS or name in ("id", "class", "for")):
                self.problems.append(f"<{tag} {name}={said}>")
            self.found += MARK in said
        if tag == "script" and [name for name, _ in attrs][:1] != ["src"]:
            self.problems.append("<script> of its own")

    def handle_data(self, data: str) -> None:
        self.found += MARK in data
        if self.cdata_elem and MARK in data:
            self.problems.append(f"in a script or style: {data}")

    def handle_comment(self, data: str) -> None:
        self.problems.append(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        self.problems.append(f"an instruction: {data}")

    def handle_decl(self, decl: str) -> None:
        if decl.lower() != "doctype html":
            self.problems.append(f"a declaration: {decl}")

    def unknown_decl(self, data: str) -> None:
        self.problems.append(f"a declaration: {data}")


def look_at(html: str) -> tuple[list[str], int]:
    """What is wrong with a page, and how often a hostile text is in it as a text."""
    look = _Look()
    look.feed(html)
    look.close()
    return look.problems, look.found
