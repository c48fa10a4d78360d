"""`python -m qconvert.cli.limited BYTES ARGUMENTS…` is `qconvert ARGUMENTS…` with so much address space at most; 0 for no limit."""

from __future__ import annotations

import sys


def main() -> None:
    """Sets the limit, where the system has such limits, and runs the command."""
    limit = int(sys.argv.pop(1))
    if limit:
        try:
            import resource
        except ImportError:  # Windows
            pass
        else:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from qconvert.cli.app import main as command

    command()


if __name__ == "__main__":
    main()
