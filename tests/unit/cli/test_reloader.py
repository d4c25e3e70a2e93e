"""What `--reload` watches."""

import os
from pathlib import Path

from onward.cli.reloader import sources_in


def test_sources_are_python_files_that_are_neither_hidden_nor_installed(tmp_path: Path) -> None:
    for name in ("shop.py", "deep/er/jobs.py", "notes.txt", ".git/a.py", "venv/lib/a.py", "node_modules/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")

    found = sources_in([tmp_path])

    assert {os.path.relpath(path, tmp_path) for path in found} == {"shop.py", "deep/er/jobs.py"}


def test_a_change_of_time_or_size_is_a_change(tmp_path: Path) -> None:
    source = tmp_path / "shop.py"
    source.touch()
    before = sources_in([tmp_path])

    os.utime(source, (1, 1))
    touched = sources_in([tmp_path])
    source.write_text("x")
    os.utime(source, (1, 1))

    assert before != touched != sources_in([tmp_path])
