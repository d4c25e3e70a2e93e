"""What `import onward` brings along."""

import subprocess
import sys

SCRIPT = """
import sys
before = set(sys.modules)
import onward
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(root for root in roots if root not in sys.stdlib_module_names and not root.startswith("_")))
"""


def test_the_core_imports_only_the_standard_library_msgspec_and_typing_extensions() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)

    assert set(found.stdout.split()) <= {"onward", "msgspec", "typing_extensions"}
