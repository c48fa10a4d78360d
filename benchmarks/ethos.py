"""What Vela gives to an Ethos-U of the repository's models: of the .tflite files themselves, and of what two targets make of each model.

    pip install ./plugins/qconvert-ethos
    python benchmarks/ethos.py [--npu ethos-u55-128] [--markdown docs/measured/ethos.md] [MODEL …]

A cell is the operators of the file that run on the NPU, of how many, and Vela's estimate of cycles for the NPU's part. "no" is a file that
Vela or the target does not take.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from qconvert_ethos.constraints import NO_KERNELS
from qconvert_ethos.vela import compile_file

import qconvert
from qconvert.plugin import tflite_operators

FIXTURES = Path(__file__).parents[1] / "fixtures"


def count_cycles(estimates: Mapping[str, float]) -> str:
    return f"{estimates.get('cycles_total', 0):,.0f} cycles"


def placed(file: Path, npu: str, describe: Callable[[Mapping[str, float]], str] = count_cycles) -> str:
    """Return a cell of the table, which ends with what Vela estimates."""
    try:
        found = compile_file(file, npu)
    except qconvert.QConvertError as error:
        return f"no: {error.reason.partition('. It printed')[0]}"
    operators = [op for op in tflite_operators(file) if op.name not in NO_KERNELS]
    on_npu = len(operators) - len(found.on_cpu)  # tensors of a file without names cannot be told from each other
    return f"{on_npu} of {len(operators)}, {describe(found.estimates)}"


def converted(model: Path, target: str, npu: str, folder: Path, describe: Callable[[Mapping[str, float]], str] = count_cycles) -> str:
    """Return the cell of what a target makes of a model."""
    file = folder / f"{model.stem}.tflite"
    graph = qconvert.load(model)
    dynamic = any(isinstance(size, str) for name in graph.inputs for size in graph[name].shape or ())
    try:
        qconvert.convert(model, file, target=target, force=True, **({"batch": 1} if dynamic else {}))
    except qconvert.QConvertError as error:
        return f"no: {error.rule}"
    return placed(file, npu, describe)


def _shares(cells: Sequence[str]) -> list[float]:
    """The share of operators on the NPU that each cell says; 0 where nothing was taken."""
    counts = [re.match(r"(\d+) of (\d+)", cell) for cell in cells]
    return [int(count[1]) / int(count[2]) if count else 0.0 for count in counts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--npu", default="ethos-u55-128", help="as Vela's --accelerator-config has it")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("models", nargs="*", type=Path)
    given = parser.parse_args()
    models = given.models or sorted(FIXTURES.glob("*.tflite")) + sorted((FIXTURES / "onnx").glob("*.onnx"))
    family = given.npu.rpartition("-")[0]
    rows = [("model", "the file", "tflite-micro", family), ("---",) * 4]
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            own = placed(model, given.npu) if model.suffix == ".tflite" else ""
            name = model.stem if FIXTURES in model.parents else f"{model.parent.name}/{model.stem}"
            rows.append((name, own, *(converted(model, target, given.npu, Path(folder)) for target in ("tflite-micro", family))))
            print(" | ".join(rows[-1]), flush=True)
    if given.markdown:
        words = (__doc__ or "").rpartition("\n\n")[2].strip().replace("\n", " ")
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        shares = [_shares(row[1:]) for row in rows[2:]]
        wholly = ", ".join(f"{sum(share[place] == 1 for share in shares)} {title}" for place, title in enumerate(rows[0][1:]))
        told = f"`python benchmarks/ethos.py --npu {given.npu}`: Vela {version('ethos-u-vela')}. {words}"
        told += f" Wholly on the NPU, of {len(shares)}: {wholly}."
        means = [np.mean([share[place] for share in shares]) for place in (1, 2)]
        told += f" Operators on the NPU, on average: {means[0]:.1%} without the target {family} (tflite-micro), {means[1]:.1%} with it."
        given.markdown.write_text(f"# Ethos-U by Vela\n\n{told}\n\n{table}\n")


if __name__ == "__main__":
    main()
