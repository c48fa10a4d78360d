"""benchmark(): how long model files take in their runtimes, each in a process of its own, in turns."""

from __future__ import annotations

from qconvert.benchmarking.benchmark import BenchmarkReport, Measured, benchmark

__all__ = ["BenchmarkReport", "Measured", "benchmark"]
