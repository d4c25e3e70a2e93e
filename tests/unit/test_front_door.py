"""The names that `import onward` offers."""

import types

import onward


def test_the_front_door_lists_what_it_imports_and_nothing_else() -> None:
    found = {name for name, value in vars(onward).items() if name[0] != "_" and not isinstance(value, types.ModuleType)}

    assert sorted(onward.__all__) == sorted(found)


def test_the_front_door_is_small() -> None:
    assert len(onward.__all__) <= 60
