"""benchmark(): how long model files take in their runtimes, each in a process of its own, in turns."""

from __future__ import annotations

from qconvert.benchmarking.benchmark import benchmark
from qconvert.benchmarking.report import BenchmarkReport, Measured

__all__ = ["BenchmarkReport", "Measured", "benchmark"]
