"""Partitions of real models: regions that targets get, how much of the network is in them, and whether it is equal once it is split.

python benchmarks/partition.py MODEL…            prints the table of docs/measured/partition.md
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from qconvert import Target, check, load, partition
from qconvert.plugins import temporary_plugin

INTEGER = ("int8", "uint8")
#: A made-up accelerator: products, sums, pools and what moves integers between them; no tables, no floats.
NPU = Target(
    "sample-npu",
    "onnx",
    "a made-up accelerator",
    passes=("match_rounding", "assign_layout", "store_activations"),
    layout="channels_first",
    floats=False,
    integer_kernels=dict.fromkeys(
        ("Conv", "Gemm", "MatMul", "Add", "Relu", "AveragePool", "GlobalAveragePool", "MaxPool", "Concat", "Reshape", "Transpose"), INTEGER
    ),
)


class Plugin:
    """Gives the made-up accelerator."""

    from qconvert import hookimpl

    @hookimpl
    def qconvert_targets(self) -> list[Target]:
        return [NPU]


def row(path: Path, target: str, lossless: bool) -> str:
    """One line of the table."""
    graph = load(path)
    start = time.perf_counter()
    found = partition(graph, target, lossless=lossless)
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        partition(path, target, split=Path(folder, "parts"), lossless=lossless)
        parts = len(list(Path(folder, "parts").iterdir())) - 2
        report = check(path, Path(folder, "parts", "manifest.json"), samples=2)
    equal = min((item.equal for item in report.outputs), default=0.0)
    crossing = sum(region.bytes_in + region.bytes_out for region in found.regions)
    share = f"{100 * found.taken_macs() / found.macs:.1f}%" if found.macs else "-"
    inside = found.operators - len(found.outside)
    words = report.verdict if equal == 1 else f"{report.verdict} ({100 * equal:.2f}% equal)"
    return (
        f"| {path.stem} | {target}{' --lossless' if lossless else ''} | {len(found.regions)} | {inside} of {found.operators} | {share} "
        f"| {crossing:,} | {parts} | {seconds:.2f} s | {words} |"
    )


def main() -> None:
    print("| model | target | regions | operators inside | MACs inside | bytes crossing | files | cut in | split, and checked |")
    print("|---|---|---|---|---|---|---|---|---|")
    with temporary_plugin(Plugin(), "sample"):
        for name in sys.argv[1:]:
            for target in ("sample-npu", "tflite-micro", "tensorrt", "ort-x86"):
                for lossless in (False, True) if target == "tensorrt" else (False,):
                    try:
                        print(row(Path(name), target, lossless), flush=True)
                    except Exception as error:
                        print(f"| {Path(name).stem} | {target} | {type(error).__name__}: {str(error)[:300]!r} |", flush=True)


if __name__ == "__main__":
    main()
