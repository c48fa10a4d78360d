"""Node data for Model Explorer (google-ai-edge/model-explorer): what was found of each operator, shown over the graph of a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qconvert.checking.findings import CheckReport
from qconvert.errors import OptionError
from qconvert.files import whole_file
from qconvert.graph import Graph
from qconvert.reports.graphs import classify_execution
from qconvert.reports.overwriting import require_replaceable

__all__ = ["node_data", "require_node_data", "write_node_data"]

#: By which a file of node data is known as one that qconvert wrote.
_GENERATOR = '{"name": "qconvert'
#: Of each class of finding, and of what an operator runs on, as pages colour it in light.
_COLOURS: Mapping[str, str] = {
    "equal": "#dcefe2", "one rounding": "#d7e6f7", "approximate": "#fdf1cc", "dynamic range": "#fdf1cc", "requantized": "#eadcf5",
    "source overflows": "#eadcf5", "kernels differ": "#e7e9ed", "not compared": "#e7e9ed", "unexplained": "#f8d3d0",
    "integer": "#dcefe2", "float": "#fdf1cc", "moves": "#e7e9ed", "converts": "#ffffff",
}  # fmt: skip


def node_data(subject: CheckReport | Graph) -> dict[str, Any]:
    """Node data by the names of the tensors that operators compute, which Model Explorer knows nodes of TFLite and ONNX by.

    Args:
        subject: a check that compared operators (`per_op=True`), or a network; functions of it are left out.

    Returns:
        What Model Explorer reads as a file of node data (GraphNodeData of ai-edge-model-explorer 0.1). Of a check: of each tensor the
        largest difference, in steps of its quantization or, of float values, as a share of its range, -1 where there is no number, and a
        colour that stands for the class. Of a network: bits of what each operator gives, and a colour for what it runs on.

    Raises:
        OptionError: the check compared no operators.
    """
    if isinstance(subject, Graph):
        bits = {name: (_bits(subject[name].dtype), classify_execution(subject, op)) for op in subject.ops for name in op.outputs if name}
        return _document("qconvert: bits of the results", bits)
    if not subject.operators:
        raise OptionError(
            "the check compared no operators, so that the page would be empty", remedy="Check with --per-op.", rule="operators-not-compared"
        )
    found = {op.output: (op.largest if op.largest < float("inf") else -1, op.verdict) for op in subject.operators if op.output}
    return _document("qconvert check: largest difference", found)


def _bits(dtype: str) -> int:
    """Of one element, as the type's name says; a bool has 8, and texts are of any length."""
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 8 * (dtype == "bool")


def _document(name: str, found: Mapping[str, tuple[float, str]]) -> dict[str, Any]:
    results = {tensor: {"value": value, "bgColor": _COLOURS[word], "textColor": "#1c2330"} for tensor, (value, word) in found.items()}
    return {"name": name, "results": results}


def require_node_data(out: Path, force: bool = False) -> bool:
    """Whether what stands at a place may be replaced by node data; see require_replaceable()."""
    return require_replaceable(out, (".json",), _GENERATOR, "a file of node data", force)


def write_node_data(subject: CheckReport | Graph, out: str | Path, *, force: bool = False, reads: Sequence[Path] = ()) -> None:
    """Writes node_data() to a .json file. One that qconvert wrote is replaced; any other is with `force`, but none of `reads`.

    Raises:
        QConvertError: there is nothing to write, or the file cannot be written.
    """
    document = json.dumps(node_data(subject), allow_nan=False)
    with whole_file(Path(out), force=require_node_data(Path(out), force), reads=[path for path in reads if os.path.exists(path)]) as path:
        path.write_text(document, encoding="utf-8")
