"""Graphs as plain data for viewers: operators and tensors by number for a page, and node data for Model Explorer (google-ai-edge/model-
explorer).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qconvert.checking.findings import CheckReport
from qconvert.errors import OptionError
from qconvert.files import whole_file
from qconvert.graph import Graph, Op, Shape, Tensor
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import all_graphs
from qconvert.reports.histograms import Bars, bars_of
from qconvert.reports.report_file import require_replaceable
from qconvert.tables import format_text, numbers


def format_shape(shape: Shape | None) -> str:
    """A shape: [1, 8, 8], ["batch", 8], or [?] where not even the rank is known."""
    return "[?]" if shape is None else f"[{', '.join(format_text(size) for size in shape)}]"


def format_quantization(tensor: Tensor) -> tuple[str, str]:
    """Scales and zero points of a tensor in words; ("", "") without a quantization."""
    q = tensor.quantization
    if q is None:
        return "", ""
    along = f", axis {q.axis}" if q.axis is not None else ""
    blocks = f", blocks of {q.block_size}" if q.block_size else ""
    return f"{numbers(q.scale)}{along}{blocks}", numbers(q.zero_point)


Bins = Mapping[str, Bars]


def graph_document(title: str, graph: Graph, marks: Mapping[str, str], bars: Bins) -> dict[str, Any]:
    """A network and its functions.

    Args:
        title: what it is, such as "source".
        graph: the network.
        marks: what was found of operators, one of findings.CLASSES, by the tensor that they compute.
        bars: histograms of activations, by the tensor.

    Returns:
        {"title", "name", "parts": one for the network and each function, {"name", "inputs", "outputs", "ops", "tensors"}}
    """
    parts = [_part(name, part, marks, bars) for name, part in all_graphs(graph)]
    return {"title": title, "name": format_text(graph.name), "parts": parts}


def _part(name: str, graph: Graph, marks: Mapping[str, str], bars: Bins) -> dict[str, Any]:
    order = {tensor: index for index, tensor in enumerate(graph.tensors)}
    return {
        "name": format_text(name),
        "inputs": [order[item] for item in graph.inputs],
        "outputs": [order[item] for item in graph.outputs],
        "ops": [_op(op, graph, order, marks) for op in graph.ops],
        "tensors": [_tensor(tensor, bars) for tensor in graph.tensors.values()],
    }


def _op(op: Op, graph: Graph, order: Mapping[str, int], marks: Mapping[str, str]) -> dict[str, Any]:
    return {
        "kind": format_text(op.kind),
        "source": format_text(op.source),
        "in": [order[item] if item else -1 for item in op.inputs],
        "out": [order[item] for item in op.outputs if item],
        "attributes": {format_text(key): format_text(value) for key, value in op.attributes.items()},
        "runs": classify_execution(graph, op),
        "mark": next((marks[item] for item in op.outputs if item in marks), ""),
    }


def classify_execution(graph: Graph, op: Op) -> str:
    """ "integer" where data and results have quantizations, "converts", "moves", or "float"."""
    if kind_of(op).rule == "convert":
        return "converts"
    if kind_of(op).rule in ("move", "relabel", "state", "control"):
        return "moves"
    results: Sequence[str] = [item for item in op.outputs if item]
    return "integer" if results and all(graph[item].is_quantized or "float" not in graph[item].dtype for item in results) else "float"


def _tensor(tensor: Tensor, bars: Bins) -> dict[str, Any]:
    scale, zero_point = format_quantization(tensor)
    counted = bars.get(tensor.name) if tensor.data is None else bars_of(tensor, tensor.data)
    found: dict[str, Any] = {"name": format_text(tensor.name), "type": tensor.dtype, "shape": format_shape(tensor.shape)}
    if tensor.is_constant:
        found["constant"] = True
    if scale:
        found |= {"scale": scale, "zero_point": zero_point}
    if counted is not None:
        found["bars"] = {key: value for key, value in asdict(counted).items() if value not in ((), False, 0) or key in ("low", "high")}
    return found


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


def require_node_data(out: Path, force: bool) -> bool:
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
