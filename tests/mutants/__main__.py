"""Plants one defect after another in a copy of the source and says which suite finds it: `make mutants`.

Suites are run without a defect first; what fails then is not asked again. ARGS: words of the names of some mutants.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants.table import BEHAVIOUR, CLIENT, CONFORMANCE, MUTANTS, STATEFUL, WORKER, Mutant

ROOT = Path(__file__).parent.parent.parent
SOURCE = Path(os.environ.get("ONWARD_MUTANTS_SOURCE", ROOT / "src"))
SUITES = {
    STATEFUL: ["tests/stateful", "-k", "-0] and ({stateful})", "-x"],
    CONFORMANCE: ["tests/conformance/test_state.py", "-k", "{conformance}"],
    CLIENT: ["tests/sweep/test_client.py", "-k", "{sweep}"],
    WORKER: ["tests/sweep/test_worker.py", "-k", "{sweep}"],
    BEHAVIOUR: [
        *(f"tests/behaviour/test_{name}.py" for name in ("hints", "transactions", "unknown_commit")),
        "tests/sql/test_round_trips.py",
    ],
}
"""What is asked, in the words of pytest; which databases is filled in."""
POSTGRES = {
    "stateful": "[postgres",
    "conformance": "asyncpg and not bouncer and not alchemy",
    "sweep": "[asyncpg",
}
SQLITE = {"stateful": "[sqlite", "conformance": "sqlite-sync and not alchemy", "sweep": "[sqlite-"}
SCALE = {STATEFUL: "0.9", CONFORMANCE: "0.2", CLIENT: "0.2", WORKER: "0.1", BEHAVIOUR: "0.1"}
SETTINGS = {"ONWARD_SWEEP_SEED": "12", "ONWARD_STATEFUL_SHRINK": "no"}
LIMIT = 1200
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", re.MULTILINE)


def say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def asked(suite: str, files: str) -> list[str]:
    """The tests to run for a defect in these files: one of an adapter shows on its own database."""
    sides = [words for words, place in ((POSTGRES, "sqlite"), (SQLITE, "postgres")) if f"state/{place}" not in files]
    chosen = {key: " or ".join(f"({words[key]})" for words in sides) for key in POSTGRES}
    return [word.format(**chosen) for word in SUITES[suite]]


def run(suite: str, source: Path, files: str, *options: str) -> list[str] | None:
    """The tests that fail; None if time was up."""
    environment = {**os.environ, **SETTINGS, "PYTHONPATH": str(source), "ONWARD_TEST_SCALE": SCALE[suite]}
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", "--tb=no", *asked(suite, files)]
    command += options
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=subprocess.STDOUT) as child:
        try:
            output, _ = child.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.communicate()
            return None
    if child.returncode not in (0, 1, 2):
        raise SystemExit(output.decode())
    return _FAILED.findall(output.decode())


def plant(mutant: Mutant, source: Path) -> bool:
    """Change the copy; whether there was something to change."""
    spellings = (mutant.old,) if isinstance(mutant.old, str) else mutant.old
    for file in sorted((source / "onward").glob(mutant.files)):
        text = file.read_text()
        for old in spellings:
            if old in text:
                file.write_text(text.replace(old, mutant.new, 1))
                return True
    return False


def find(mutant: Mutant, known: dict[str, list[str]]) -> str:
    """Which suite finds it, and how."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        if not plant(mutant, source):
            return "CANNOT BE PLANTED: the text is not there any more"
        for suite in (mutant.expected, *(other for other in SUITES if other != mutant.expected)):
            if suite == BEHAVIOUR and mutant.expected != BEHAVIOUR:
                continue
            deselected = [option for test in known[suite] for option in ("--deselect", test)]
            failed = run(suite, source, mutant.files, "--maxfail=1", *deselected)
            if failed is None:
                return f"found by {suite}: it does not end"
            if failed:
                return f"found by {suite}: {len(failed)} tests, {failed[0].rpartition('::')[2]}"
    return "SURVIVED"


def baseline() -> dict[str, list[str]]:
    """What fails without any defect of ours."""
    known: dict[str, list[str]] = {}
    for suite in SUITES:
        say(f"  without a mutant: {suite} … ", end="")
        failed = run(suite, SOURCE, "")
        if failed is None:
            raise SystemExit(f"{suite} does not end within {LIMIT} s")
        known[suite] = failed
        say(f"{len(failed)} fail" if failed else "passes")
    return known


def main() -> int:
    words = sys.argv[1:]
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    known = baseline()
    answers: list[str] = []
    for number, mutant in enumerate(chosen, 1):
        began = time.monotonic()
        say(f"{number}/{len(chosen)} {mutant.name} … ", end="")
        answers.append(find(mutant, known))
        say(f"{answers[-1]} ({time.monotonic() - began:.0f} s)")
    found = sum(answer.startswith("found") for answer in answers)
    say(f"{found} of {len(chosen)} mutants found")
    return 0 if found >= len(chosen) - 1 else 1


if __name__ == "__main__":
    sys.exit(main())
