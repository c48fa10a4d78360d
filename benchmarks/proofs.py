"""What `qconvert check --prove` decides: models converted, and how many of their operators are proved equal for all inputs.

    python benchmarks/proofs.py [MODEL ...] [--target ort-x86] [--markdown docs/measured/kernels.md]

ONNX files are converted to TFLite, .tflite files to ONNX, PyTorch files to both. Without MODEL they are the .tflite, .onnx and PyTorch
files of fixtures/. Seconds are processor time of the proof alone, with both files read. The page gets the first table, the sums of each
way, and the reasons of what is not proved; the terminal every model of each way.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from page import Section, publish

from qconvert import QConvertError, convert
from qconvert.checking.file_in_runtime import sides_of
from qconvert.checking.proof.classes import CLASSES, EQUAL_CLASSES
from qconvert.checking.proof.proving import prove_sides

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
HEADER = ["model", "operators", *CLASSES, "outputs are proved equal", "what is not", "seconds"]
#: Whose kernels are compared.
_RUNTIMES = [f"{name} {version(name)}" for name in ("ai-edge-litert", "onnxruntime")]
#: Class and reason of an operator that is not proved equal -> kinds.
Reasons = dict[tuple[str, str], Counter[str]]


def row(source: Path, suffix: str, target: str, folder: Path, reasons: Reasons) -> tuple[list[str], Counter[str]]:
    """The classes of a model's operators, and as a row of the table; adds to the reasons of those that are not equal."""
    result = folder / f"{source.stem}{suffix}"
    convert(source, result, target=target, force=True)
    sides, _ = sides_of(source, result, (), {})
    assert sides[0].graph and sides[1].graph
    read, found = time.process_time(), prove_sides(sides)
    seconds = time.process_time() - read
    counts = Counter(item.class_ for item in found.operators)
    others = Counter(item.operator.partition(" ")[0] for item in found.operators if item.class_ not in EQUAL_CLASSES)
    words = ", ".join(f"{count} {kind}" for kind, count in others.items())
    for item in found.operators:
        if item.class_ not in EQUAL_CLASSES:
            why = re.sub(r"'[^']*'", "x", re.sub(r"(?<!\w)-?\d[\d.]*(e-?\d+)?", "n", re.sub(r"(, such as|: code).*", "", item.why)))
            reasons.setdefault((item.class_, why), Counter())[item.operator.partition(" ")[0]] += 1
    name = f"{source.parent.name}/{source.stem}" if source.parent.parent.name == "torch" else source.stem
    cells = [name, str(len(found.operators)), *(str(counts[name] or "") for name in CLASSES)]
    return [*cells, found.claim.removeprefix("proved equal "), words, f"{seconds:.2f}"], counts


def section(title: str, models: Sequence[Path], suffix: str, target: str, reasons: Reasons) -> tuple[Section, list[str]]:
    """The table of models that are converted to files with a suffix, and their sums; adds to the reasons of what is not proved."""
    rows, total = [], Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            try:
                cells, counts = row(model, suffix, target, Path(folder), reasons)
            except QConvertError as error:
                print(f"{model.name}: {error.sentence}")
                continue
            rows.append(cells)
            total += counts
    equal, operators = sum(total[name] for name in EQUAL_CLASSES), total.total()
    share, wholly = f"{equal} ({equal / max(operators, 1):.1%})", sum(cells[-3].startswith("for all inputs") for cells in rows)
    sums = [title, str(len(rows)), str(operators), *(str(total[name] or "") for name in CLASSES), share, str(wholly)]
    words = f"; target {target}" if target else ""
    return Section(title, HEADER, rows, f"{share} of {operators} operators are equal for all inputs{words}."), sums


def _list_reasons(found: dict[str, Reasons]) -> Section:
    lines = [
        [title, class_, why, str(kinds.total()), ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(6))]
        for title, reasons in found.items()
        for (class_, why), kinds in sorted(reasons.items(), key=lambda item: -item[1].total())
    ]
    return Section("What is not proved", ["files", "class", "why", "operators", "most of them"], lines, "n: a number, x: a name.")


def _fixtures() -> list[Path]:
    patterns = ("*.tflite", "onnx/*.onnx", "torch/*/*.pt", "torch/*/*.pt2")
    return [path for pattern in patterns for path in sorted(FIXTURES.glob(pattern)) if not path.name.startswith("refused")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=_fixtures())
    parser.add_argument("--target", default="ort-x86", help="of what is converted to ONNX")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    given = parser.parse_args()
    to_tflite = [model for model in given.models if model.suffix == ".onnx"]
    of_torch = [model for model in given.models if model.suffix in (".pt", ".pt2")]
    to_onnx = [model for model in given.models if model not in to_tflite and model not in of_torch]
    sections = [
        ("TFLite as ONNX", to_onnx, ".onnx", given.target),
        ("ONNX as TFLite", to_tflite, ".tflite", ""),
        ("PyTorch as ONNX", of_torch, ".onnx", given.target),
        ("PyTorch as TFLite", of_torch, ".tflite", ""),
    ]
    reasons: dict[str, Reasons] = {}
    lines = []
    for title, models, suffix, target in sections:
        if models:
            part, sums = section(title, models, suffix, target, reasons.setdefault(title, {}))
            publish(part, given.markdown if models is to_onnx else None, "python benchmarks/proofs.py", 200)
            lines.append(sums)
    header = ["files", "models", "operators", *CLASSES, "equal for all inputs", "models wholly"]
    note = f"ONNX files of the target {given.target}; {', '.join(_RUNTIMES)}."
    for last in (Section("Proofs", header, lines, note), _list_reasons(reasons)):
        publish(last, given.markdown, "python benchmarks/proofs.py", 200)


if __name__ == "__main__":
    main()
