"""Which Onward this is; pyproject.toml has it from here, and to ask what is installed takes a worker 3 MB."""

VERSION = "0.1.0"
