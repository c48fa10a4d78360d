"""Models converted for TensorRT: what its builder makes of them, for several compute capabilities, next to the prediction, and the check.

    python benchmarks/tensorrt_engines.py [MODELS_OR_FOLDERS ...] [--sm 89 80 120] [--skip-check] [--markdown docs/measured/tensorrt.md]

Needs the extra `tensorrt`; engines are built, not run. A PyTorch file takes the shapes of its inputs from the .json next to it.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from page import Section, cells, publish

from qconvert import AuditReport, QConvertError, audit, check, convert

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
SUFFIXES = (".tflite", ".onnx", ".pt", ".ptl", ".pt2")
PRODUCTS = ("Conv", "Gemm", "MatMul", "ConvTranspose")
REFUSED = "refused: "


def files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES) if path.is_dir() else [path]


def options_of(path: Path) -> dict[str, Any]:
    """Of the reader: the shapes of a TorchScript file, which does not state them."""
    about = path.with_suffix(".json")
    if path.suffix not in (".pt", ".ptl") or not about.exists():
        return {}
    shapes = [item["shape"] for item in json.loads(about.read_text()).get("inputs", [])]
    return {"input_shape": "; ".join(",".join(map(str, shape)) for shape in shapes)} if shapes else {}


def built(path: Path, capability: str, options: dict[str, Any]) -> AuditReport | str:
    """The engine, or why there is none."""
    try:
        return audit(path, "tensorrt", build=True, kernels=f"tensorrt:sm{capability}", **options)
    except QConvertError as error:
        return said(error)


def said(error: QConvertError) -> str:
    """Why a model is refused: the rules that it breaks, or the first words."""
    rules = re.findall(r"the rule: (.*?)\. Broken", error.reason)
    return REFUSED + ("; ".join(rules) or error.reason[:160].replace("\n", " "))


def products(report: AuditReport, *, integer: bool) -> str:
    """The products of the written file by kind, in layers of one sort."""
    counts = Counter(kind for layer in report.layers if layer.integer is integer for kind in layer.operators if kind in PRODUCTS)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def layers(report: AuditReport) -> list[str]:
    """Layers on integers, in float, and those that only convert or move."""
    kinds = Counter(layer.integer for layer in report.layers)
    return [str(kinds[True]), str(kinds[False]), str(kinds[None])]


def brief(report: AuditReport | str) -> str:
    if isinstance(report, str):
        return report
    parts = [products(report, integer=True), products(report, integer=False)]
    return f"{parts[0] or 'none'}; real: {parts[1] or 'none'}; {len(report.otherwise)} otherwise"


def checked(path: Path, options: dict[str, Any]) -> tuple[str, str]:
    """The verdict of the check, with what it says of it, and the size of the written file in KB."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "model.onnx")
        try:
            convert(path, result, target="tensorrt", **options)
            report = check(path, result, **options)
        except QConvertError as error:
            return said(error), f"{result.stat().st_size / 1000:.0f}" if result.exists() else ""
        words = [*report.problems, *report.unjudged, *report.costs][:1]
        return ": ".join([report.verdict, *words]), f"{result.stat().st_size / 1000:.0f}"


def row(path: Path, capabilities: list[str], *, skip_check: bool) -> list[str]:
    options = options_of(path)
    first, *others = (built(path, capability, options) for capability in capabilities)
    verdict, size = ("", "") if skip_check else checked(path, options)
    name = f"{path.parent.name}/{path.name}"
    same = ["as the first" if brief(other) == brief(first) else brief(other) for other in others]
    if isinstance(first, str):
        return [name, first, "", "", "", "", "", *same, "", ""]
    on = [products(first, integer=True), products(first, integer=False), *layers(first), str(len(first.otherwise))]
    return [name, *on, *same, size, verdict]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, help="default: fixtures")
    parser.add_argument("--sm", nargs="+", default=["89"])
    parser.add_argument("--skip-check", action="store_true")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    header = ["model", "products on integers", "real", "integer layers", "real layers", "others", "otherwise than predicted"]
    header += [*(f"SM{capability}" for capability in options.sm[1:]), "KB", "check"]
    lines = []
    for path in files(options.models or [FIXTURES]):
        lines.append(row(path, options.sm, skip_check=options.skip_check))
        print(cells(lines[-1]), flush=True)
    note = f"Engines of TensorRT-RTX for SM{options.sm[0]}: built, not run. Other layers only convert, or move data besides."
    publish(Section("TensorRT: engines", header, lines, note), options.markdown, "python benchmarks/tensorrt_engines.py", 240)


if __name__ == "__main__":
    main()
