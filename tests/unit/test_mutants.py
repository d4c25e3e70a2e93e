"""The defects that `make mutants` plants can still be planted: it takes half an hour, and is not asked every day."""

from pathlib import Path

import pytest

import onward
from mutants.table import MUTANTS, Mutant

SOURCE = Path(onward.__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_defect_would_change_is_there(mutant: Mutant) -> None:
    spellings = (mutant.old,) if isinstance(mutant.old, str) else mutant.old

    texts = [file.read_text() for file in SOURCE.glob(mutant.files)]

    assert any(old in text for text in texts for old in spellings)
