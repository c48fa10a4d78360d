"""The command inspect: what a model's file says, its operators and its tensors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import typer

from qconvert.errors import QConvertError, format_count, name_file_in_errors, printable
from qconvert.graph import Graph, Tensor
from qconvert.graph.metadata import REGIONS, origin
from qconvert.plugins import Format
from qconvert.tables import line_width, narrow_columns, shorten_text

#: Of lines in a pipe or a file.
_WIDEST = 1_000_000
#: A column that gives way keeps as many characters.
_LEAST = 12
_GAP = "  "
_COLUMNS = ("tensor", "type", "shape", ">scale", ">zero", "axis")
#: So many tensors are listed without being asked for.
_FEW = 16


def inspect_document(path: Path, format: str = "", **options: Any) -> dict[str, Any]:
    """The graph document of a model (docs/qgraph.schema.json), and under "file" what the file says of itself.

    Of a checkpoint with weights in blocks, without the option of a graph, it is its layers and tensors, under "checkpoint".

    Args:
        path: the file.
        format: a format's name; by default the suffix decides.
        options: of its reader.
    """
    from qconvert import load
    from qconvert.formats.qgraph.document import to_document

    found = _checkpoint(path, options)
    if found is not None:
        return {"checkpoint": found}
    reader = _find_reader(path, format)
    return {**to_document(load(path, reader.name, **options)), "file": _contents(path, reader)}


def print_inspection(path: Path, format: str = "", shown: str = "", *, everything: bool = False, **options: Any) -> None:
    """A summary, what goes in and out, what the file says of itself, and the operators; of few tensors each one.

    Args:
        path: the file.
        format: a format's name; by default the suffix decides.
        shown: how the file is called, where not by its path.
        everything: whether many tensors are listed too.
        options: of its reader.

    Raises:
        QConvertError: it cannot be read. What the file says of itself has been printed by then, if that could be.
    """
    from qconvert import load
    from qconvert.formats.qgraph.document import to_document

    width = line_width() or _WIDEST
    found = _checkpoint(path, options)
    if found is not None:
        _echo(_describe_checkpoint(found, shown or str(path), everything=everything, width=width), width)
        return
    reader = _find_reader(path, format)
    contents, problem = _read_contents(path, reader)
    try:
        graph = load(path, reader.name, **options)
        document = to_document(graph)
    except QConvertError:
        _echo(_describe_file(contents, reader, width), width)
        raise
    if problem is not None:
        raise problem
    counts = Counter(_operator_name(op) for op in document["ops"])
    rows = {t["name"]: (t["name"], t["dtype"], _shape(t["shape"]), *_quantization(t.get("quantization"))) for t in document["tensors"]}
    lines = [
        f"{shown or path}: {format_count(sum(counts.values()), 'operator')}, {format_count(len(rows), 'tensor')}, "
        f"{path.stat().st_size:,} bytes",
        *_summarize_storage(graph),
        "",
    ]
    ends = [(side, *rows[name]) for side, names in (("input", graph.inputs), ("output", graph.outputs)) for name in names]
    lines += [*_table(("", *_COLUMNS), ends, width), "", *_describe_file(contents, reader, width), ""]
    lines += _table(("operator", ">count"), counts.most_common(), width)
    if everything or len(rows) <= _FEW:
        lines += ["", *_table(_COLUMNS, rows.values(), width)]
    if graph.states:
        heads = ("state", "type", "shape", ">scale", ">zero", ">first")
        lines += ["", *_table(heads, [_state(t, graph.states[t["name"]]) for t in document["states"]], width)]
    if graph.functions:
        lines += ["", *_table(("function", ">operators", "kinds"), _functions(document["functions"]), width)]
    if regions := _regions(graph):
        lines += ["", *_table(("region", "target", ">operators"), regions, width)]
    if not everything and len(rows) > _FEW:
        lines += ["", "--verbose lists every tensor with its type, shape, scale and zero point; --json prints the whole graph."]
    _echo(lines, width)


def _checkpoint(path: Path, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a checkpoint with weights in blocks holds; None for all else, and where a graph is given."""
    from qconvert.checkpoints.safetensors import find_checkpoint, is_checkpoint

    file = find_checkpoint(path)
    if options or not is_checkpoint(file):
        return None
    from qconvert.checkpoints.source import checkpoint_summary

    with name_file_in_errors(path):
        return checkpoint_summary(file)


def _describe_checkpoint(found: Mapping[str, Any], shown: str, *, everything: bool, width: int) -> list[str]:
    """A summary, and a line for each kind of layer; with `everything` one for each layer, and for each other tensor."""
    layers, tensors = found["layers"], found["tensors"]
    integers = sum(layer["outputs"] * layer["inputs"] for layer in layers)
    files = format_count(found["files"], "file")
    lines = [f"{shown}: {format_count(len(layers), 'layer')} in blocks with {integers:,} values, {len(tensors)} other tensors, {files}"]
    lines += [f"note: {note}" for note in found["notes"]]
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for layer in layers:
        kinds.setdefault(_kind_of(layer), []).append(layer)
    heads = ("stored as", ">bits", ">block", "scales", "zero points", "more", ">layers")
    rows = [(*kind[:4], _zero_points(alike), kind[4], str(len(alike))) for kind, alike in kinds.items()]
    lines += ["", *_table(heads, rows, width)]
    if everything:
        each = [(layer["name"], f"{layer['outputs']},{layer['inputs']}", *_kind_of(layer)[1:4]) for layer in layers]
        lines += ["", *_table(("layer", "shape", ">bits", ">block", "scales"), each, width)]
        others = [(item["name"], item["dtype"], _shape(item["shape"])) for item in tensors]
        lines += ["", *_table(("tensor", "type", "shape"), others, width)] if others else []
    else:
        lines += ["", "--verbose lists every layer and tensor; --json prints them."]
    return lines


def _kind_of(layer: Mapping[str, Any]) -> tuple[str, ...]:
    """How a layer is stored: container, bits, size of blocks, scales, and what else there is."""
    names = {
        "experts": "experts",
        "has_offsets": "offsets",
        "has_act_order": "act-order",
        "has_factors": "factors of data",
        "activations": "rounded data",
    }
    more = ", ".join(text for key, text in names.items() if layer[key])
    values = "" if layer["values"] == "integers" else f", {layer['values']}"
    return f"{layer['container']}{values}", str(layer["bits"]), str(layer["block"]), layer["scales"], more


def _zero_points(layers: Iterable[Mapping[str, Any]]) -> str:
    """The smallest and the largest of layers; "" where they have none."""
    found = [zero for layer in layers for zero in layer["zero_points"] or ()]
    return "" if not found else f"{min(found)}" if min(found) == max(found) else f"{min(found)}..{max(found)}"


def _summarize_storage(graph: Graph) -> list[str]:
    """How many integers the constants hold, and how many of the activations are quantized."""
    constants = [tensor for tensor in graph.constants() if tensor.data is not None]
    quantized = [tensor for tensor in constants if tensor.is_quantized]
    floats = sum("float" in tensor.dtype for tensor in constants)
    computed = [tensor for tensor in graph.tensors.values() if not tensor.is_constant]
    integers = sum(0 if tensor.data is None else tensor.data.size for tensor in quantized)
    parts = (
        f"quantized: {len(quantized)} constants with {integers:,} integers",
        f"{sum(tensor.is_quantized for tensor in computed)} of {len(computed)} activations",
    )
    return [f"{', '.join(parts)}; {floats} float constants"]


def _functions(documents: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What the functions of a network are, in a line each."""
    found: list[tuple[Any, ...]] = []
    for name, one in documents.items():
        kinds = Counter(_operator_name(op) for op in one["ops"]).most_common()
        shown = ", ".join(f"{kind} {count}" for kind, count in kinds)
        found.append((name, len(one["ops"]), shown))
    return found


def _regions(graph: Graph) -> list[tuple[Any, ...]]:
    """The regions that a partition made, in a line each: those that are called, or what the metadata of a file say of those in it."""
    calls = [(str(op["function"]), str(op["target"])) for op in graph.ops if op.kind == "Call" and op["target"]]
    if calls:
        return [(name, target, len(graph.functions[name].ops)) for name, target in calls]
    try:
        found = json.loads(str(origin(graph.metadata).get(REGIONS, "{}")))
        return [(name, item["target"], item["operators"]) for name, item in found.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # somebody else's entry of that name
        return []


def _find_reader(path: Path, format: str) -> Format:
    from qconvert.checkpoints.safetensors import find_checkpoint
    from qconvert.conversion.loading import source_format

    return source_format(find_checkpoint(path), format)


def _contents(path: Path, reader: Format) -> dict[str, Any]:
    return {"format": reader.name, **(reader.contents(path) if reader.contents is not None else {})}


def _read_contents(path: Path, reader: Format) -> tuple[dict[str, Any], QConvertError | None]:
    try:
        return _contents(path, reader), None
    except QConvertError as error:
        error.file = error.file or str(path)
        return {}, error


def _describe_file(contents: dict[str, Any], reader: Format, width: int) -> list[str]:
    """The lines that say what the file says; none where it says nothing."""
    operators = contents.get("operators")
    if operators is None:
        return []
    said = [f"{name} {value}" for name, value in contents.items() if name not in ("operators", "format") and value]
    head = f"{reader.name} file: " + "; ".join(said)
    return [head, "", *_table((f"in the {reader.name} file", ">count"), operators.items(), width)]


def _echo(lines: Iterable[str], width: int) -> None:
    for line in (printable(line, one_line=True) for line in lines):
        parts = [line] if len(line) <= width else wrap(line, width, subsequent_indent=_GAP, break_long_words=False, break_on_hyphens=False)
        for part in parts:
            typer.echo(shorten_text(part, width).rstrip())


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], width: int) -> list[str]:
    """Lines of columns, those with ">" to the right. The widest of the others gives way until a line fits: numbers stay whole."""
    cells = [[printable(str(cell), one_line=True) for cell in row] for row in rows]
    titles = [head.lstrip(">") for head in heads]
    widths = [min(width, max(len(row[place]) for row in (titles, *cells))) for place in range(len(heads))]
    least = [size if head.startswith(">") else _LEAST for head, size in zip(heads, widths, strict=True)]
    widths = narrow_columns(widths, least, width - len(_GAP) * (len(widths) - 1))
    lines = [_GAP.join(_cell(text, head, size) for text, head, size in zip(row, heads, widths, strict=True)) for row in (titles, *cells)]
    return [lines[0], _GAP.join("-" * size for size in widths), *lines[1:]]


def _cell(text: str, head: str, size: int) -> str:
    text = shorten_text(text, size)
    return text.rjust(size) if head.startswith(">") else text.ljust(size)


def _operator_name(op: dict[str, Any]) -> str:
    """The kind, and for an operator outside the set the name that its format gives it."""
    if op["kind"] != "Opaque":
        return str(op["kind"])
    domain, name = op["attributes"]["domain"], op["attributes"]["op_type"]
    return f"{domain}.{name} (Opaque)" if domain else f"{name} (Opaque)"


def _shape(shape: list[int | str] | None) -> str:
    return "unknown" if shape is None else ",".join(map(str, shape)) or "scalar"


def _state(document: dict[str, Any], state: Tensor) -> tuple[str, ...]:
    """A row on a state: what tensors have, and its first value."""
    scale, zero, _ = _quantization(document.get("quantization"))
    values = [] if state.data is None else [state.data.min(), state.data.max()] if state.data.size else []
    first = "" if not values else f"{values[0]:g}" if values[0] == values[1] else f"{values[0]:g}..{values[1]:g}"
    return document["name"], document["dtype"], _shape(document["shape"]), scale, zero, first


def _quantization(found: dict[str, Any] | None) -> tuple[str, str, str]:
    """Scale, zero point and axis; a range where there are many."""
    if found is None:
        return "", "", ""
    scale, zero = found["scale"], sorted(set(found["zero_point"]))
    text = f"{scale[0]:.6g}" if len(scale) == 1 else f"{min(scale):.2g}..{max(scale):.2g} x{len(scale)}"
    return (
        text,
        str(zero[0]) if len(zero) == 1 else f"{zero[0]}..{zero[-1]}",
        "" if found["axis"] is None else str(found["axis"]),
    )
