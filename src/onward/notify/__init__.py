"""ANNOUNCE: hints come in after a commit, wake-ups come out elsewhere. A hint may be lost: it only saves time."""
