"""python -m qconvert: the command line."""

from __future__ import annotations

from qconvert.cli.app import main

if __name__ == "__main__":
    main()
