"""The table of capabilities in the docs is what the providers declare."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_what_the_providers_declare() -> None:
    spec = importlib.util.spec_from_file_location("capabilities", DOCS / "capabilities.py")
    assert spec is not None
    assert spec.loader is not None
    capabilities = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(capabilities)

    assert capabilities.PAGE.read_text() == capabilities.page(), "run `make docs`"
