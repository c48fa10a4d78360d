"""Differential checks: source and result run in their own runtimes, and every difference is explained or named."""
