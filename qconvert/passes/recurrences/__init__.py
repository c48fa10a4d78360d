"""Decomposed loops over a sequence, found again: as Scans (loop_recognition.py), and as named cells (passes/fuse_recurrence.py)."""
