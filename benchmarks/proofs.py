"""What `qconvert check --prove` decides: models converted, and how many of their operators are proved equal for all inputs.

    python benchmarks/proofs.py [MODEL ...] [--target ort-x86] [--markdown docs/measured/kernels.md]

ONNX files are converted to TFLite, others to ONNX. Without MODEL they are the .tflite and .onnx files of fixtures/. Seconds are processor
time of the proof alone, with both files read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from page import Section, publish

from qconvert import QConvertError, convert
from qconvert.checking.checked_file import sides_of
from qconvert.checking.proof.classes import CLASSES, EQUAL_CLASSES
from qconvert.checking.proof.proving import proof_of

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
#: By the suffix of the source: the title of its section, and what such files are converted to.
GROUPS = {".tflite": ("Proofs", ".onnx"), ".onnx": ("Proofs of ONNX files as TFLite", ".tflite")}
HEADER = ["model", "operators", *CLASSES, "outputs are proved equal", "what is not", "seconds"]


def row(source: Path, suffix: str, target: str, folder: Path) -> tuple[list[str], Counter[str]]:
    """The classes of a model's operators, and as a row of the table."""
    result = folder / f"{source.stem}{suffix}"
    convert(source, result, target=target if suffix == ".onnx" else "", force=True)
    sides, _ = sides_of(source, result, (), {})
    assert sides[0].graph and sides[1].graph
    read, found = time.process_time(), proof_of(sides)
    seconds = time.process_time() - read
    counts = Counter(item.class_ for item in found.operators)
    others = Counter(item.operator.partition(" ")[0] for item in found.operators if item.class_ not in EQUAL_CLASSES)
    words = ", ".join(f"{count} {kind}" for kind, count in others.items())
    cells = [source.stem, str(len(found.operators)), *(str(counts[name] or "") for name in CLASSES)]
    claim = found.claim.removeprefix("proved equal ")
    return [*cells, claim, words, f"{seconds:.2f}"], counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=[*sorted(FIXTURES.glob("*.tflite")), *sorted(FIXTURES.glob("onnx/*.onnx"))])
    parser.add_argument("--target", default="ort-x86")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    given = parser.parse_args()
    for suffix, (title, wanted) in GROUPS.items():
        rows, total = [], Counter[str]()
        with tempfile.TemporaryDirectory() as folder:
            for model in given.models:
                if (suffix == ".onnx") != (model.suffix == ".onnx"):
                    continue
                try:
                    cells, counts = row(model, wanted, given.target, Path(folder))
                except QConvertError as error:
                    print(f"{model.name}: {error.sentence}")
                    continue
                rows.append(cells)
                total += counts
        if rows:
            equal = sum(total[name] for name in EQUAL_CLASSES)
            target = f"; target {given.target}" if wanted == ".onnx" else ""
            note = f"{equal} of {total.total()} operators ({equal / max(total.total(), 1):.1%}) are equal for all inputs{target}."
            publish(Section(title, HEADER, rows, note), given.markdown, "python benchmarks/proofs.py", 200)


if __name__ == "__main__":
    main()
