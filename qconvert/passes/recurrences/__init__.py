"""Loops over a sequence that are decomposed, found again: as Scans (loops.py), and as cells that have a name (cells.py)."""
