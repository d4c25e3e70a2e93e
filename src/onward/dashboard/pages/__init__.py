"""The pages. To add one:

1. A module here with an async function that reads what it shows, by methods of the app only, as fast as one is used to
   (the database has less than a second for it): `async def look(ask: Ask) -> Data`. `ask.path` has the {names} of its
   path, `ask.query` the rest of the address. What is asked for in vain raises `NotThere("…")`, in words.
2. A template in `templates/` that extends base.html and fills `{% block content %}`. What changes while one looks is in
   `<div id="live-rows" data-live>{% block live_rows scoped %}…{% endblock %}</div>`: the id is the block's name with
   hyphens. Such a block is also sent alone, so it uses only what `look` gave, what every page has (asgi.py, `_around`)
   and `ui`. It says `{{ ui.taken() }}`: every figure says when it was taken. Links begin with `{{ base }}`, as in
   `<a href="{{ base }}jobs">`, since they are relative. No style attributes and no scripts: our own policy forbids
   them, and what is needed is in static/dashboard.css and live.js.
   Macros of ui.html: `ui.job_link(id)`, `ui.chain_link(id)`, `ui.status(status)`, `ui.pages(query, next)`,
   `ui.act("name", "Label", back=at, chain=id)`, `ui.stat(label, value)`, `ui.empty("…")`, `ui.taken()`.
   Filters: `|number`, `|time`, `|ago`, `|span`, `|pretty`, `|state`, `|short`.
   Pictures: `charts.bars(…)`, `charts.sparkline(…)`, `charts.spread(…)`, `charts.bar(…)`.
   Styles of one page go to a file of their own in static/, named in its `{% block styles %}` as base.html names its
   own: `{{ base }}static/picture.css?v={{ version }}`. Their colours are the tokens of dashboard.css.
3. A `Page(…)` in PAGES of the module, with `navigation="Name"` where it belongs there, and its `cost` in statements;
   and one line in registry.py, where the order is that of the navigation.

What can be done is an `Action(…)` in ACTIONS: `ask` says what would be done, `do` does it and says what it did. Forms
lead to `confirm/NAME`, which asks (`ui.act` is a form, so it cannot stand inside another one); from there it goes
through the gate (gate.py), which checks who and whence, and writes it down. Nothing else may change anything: a test
tries every route.

The tests of a page are in tests/behaviour/dashboard: `visit` there fetches pages, `act` does what a form would.
"""
