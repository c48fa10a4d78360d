"""load, save and convert: files to graphs, graphs to files, and the way between for a target."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import qconvert
from qconvert.errors import FileAccessError, OptionError, QConvertError
from qconvert.files import whole_file
from qconvert.graph import Graph
from qconvert.graph.validation import validate
from qconvert.plugins import Format, Target, format_named, format_of, pass_named, target_named, targets
from qconvert.targets.violations import refuse_violations

__all__ = ["ConversionReport", "convert", "load", "normalize", "save"]

PathLike = str | Path


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        source, result: the files.
        source_format, result_format, target: names.
        operators: kinds in the result's graph with their counts.
        changes: for each pass that changed something, its name and what it changed. `qconvert passes` says which are exact.
        kept: counts of what was carried over (weights, scales …).
        audit: which operators the target runs as integer kernels; see check/audit.py.
        seconds: wall time.
    """

    source: str
    result: str
    source_format: str
    result_format: str
    target: str
    operators: Mapping[str, int]
    changes: tuple[tuple[str, str], ...]
    kept: Mapping[str, int]
    audit: tuple[Any, ...] = ()
    seconds: float = 0.0
    provenance: Mapping[str, str] = field(default_factory=dict)


def load(path: PathLike, format: str = "") -> Graph:
    """The canonical graph of a model file.

    Args:
        path: the file.
        format: a format's name; by default the file's suffix decides.

    Raises:
        QConvertError: the file cannot be read, is damaged, or holds what is not covered. The error names it.
    """
    path = Path(path)
    reader = format_named(format) if format else format_of(path)
    if reader.read is None:
        raise OptionError(f"the format {reader.name} cannot be read", file=str(path))
    try:
        return reader.read(path)
    except QConvertError as error:
        error.file = error.file or str(path)
        raise


def save(graph: Graph, path: PathLike, format: str = "", *, force: bool = False, **options: Any) -> tuple[str, ...]:
    """Writes a graph as it is: no pass is run. The file appears whole or not at all.

    Returns what the format's writer says of the form that it chose, in words.

    Args:
        graph: what to write.
        path: the file.
        format: a format's name; by default the file's suffix decides.
        force: whether an existing file may be replaced.
        options: the format's own, such as opset.

    Raises:
        QConvertError: the format cannot hold the graph, or the file cannot be written.
    """
    path = Path(path)
    writer = format_named(format) if format else format_of(path)
    if writer.write is None:
        raise OptionError(f"the format {writer.name} cannot be written", file=str(path))
    with whole_file(path, force=force) as temporary:
        return writer.write(graph, temporary, options) or ()


def convert(
    source: PathLike,
    result: PathLike,
    *,
    source_format: str = "",
    result_format: str = "",
    target: str = "",
    force: bool = False,
    io_layout: str = "",
    io_float: bool = False,
    io_integer: bool = False,
    opset: int = 0,
    numerics: str = "exact",
    partial: str = "allow",
    passes: Sequence[str] = (),
    external_data: bool = False,
    form: str = "",
) -> ConversionReport:
    """Converts a model file to another format, normalized for a target.

    Args:
        source, result: the files.
        source_format, result_format: names of formats; by default the suffixes decide.
        target: the name of a target of the result's format; "" for the format's default, or its own if the source has it too.
        force: whether an existing result may be replaced.
        io_layout: "nchw" gives 4-D inputs and outputs channels first; "" keeps the source's layout.
        io_float: whether quantized inputs and outputs become float.
        io_integer: whether float inputs and outputs that are quantized at once become integers.
        opset: the ONNX opset; 0 for the default.
        numerics: "exact" takes the forms that are equal to the source's default kernels wherever such a form is cheap;
            "fast" always takes the form that the target runs fastest.
        partial: "allow" lets operators run on real values where they have no scale or no integer kernel, and lists them; "forbid" makes
            them an error.
        passes: names of passes to run, in this order, after reading and before the target's own; docs/passes.md lists them.
        external_data: whether the constants of an ONNX result go to a file beside it even if they are less than 1 GiB.
        form: "qdq" or "qoperator", the form of an ONNX result; "" for qdq.

    Raises:
        QConvertError: anything that the user can cause; nothing is written then.
    """
    for name in passes:
        pass_named(name)
    started = time.perf_counter()
    source, result = Path(source), Path(result)
    writer = format_named(result_format) if result_format else format_of(result)
    reader = format_named(source_format) if source_format else format_of(source)
    chosen = _target(writer, target or (writer.own_target if reader is writer else ""))
    if result.exists() and not force:
        raise FileAccessError("already exists", file=str(result), remedy="Use --force to replace it.")
    if source.exists() and result.exists() and source.samefile(result):
        raise OptionError("source and result are the same file", file=str(source))
    graph = load(source, source_format)
    others = reader.companions(source) if reader.companions else ()
    if source.resolve().parent == result.resolve().parent and any(item.name.startswith(result.name) for item in others):
        raise OptionError(f"a file with constants of the source has the name of the result, {result.name}", file=str(source))
    kept = _carried_over(graph)
    graph, by_hand = run_passes(graph, passes, chosen)
    graph, changes = normalize(
        graph, chosen, io_layout=io_layout, io_float=io_float, io_integer=io_integer, numerics=numerics, partial=partial
    )
    changes = (*by_hand, *changes)
    refuse_violations(graph, chosen)
    provenance = _provenance(source, others, chosen, changes)
    try:
        options: dict[str, Any] = {"opset": opset, "form": form, "numerics": numerics, "external_data": external_data}
        notes = save(graph, result, writer.name, force=force, provenance=provenance, **options)
    except QConvertError as error:
        error.file = error.file or str(source)
        raise
    from qconvert.targets.audit import audit

    return ConversionReport(
        source=str(source),
        result=str(result),
        source_format=reader.name,
        result_format=writer.name,
        target=chosen.name if chosen else "",
        operators=dict(Counter(op.kind for op in graph.ops).most_common()),
        changes=(*changes, *((writer.name, note) for note in notes)),
        kept=kept,
        audit=audit(graph, chosen) if chosen and chosen.integer_kernels else (),
        seconds=time.perf_counter() - started,
        provenance=provenance,
    )


def run_passes(graph: Graph, names: Sequence[str], target: Target | None = None) -> tuple[Graph, tuple[tuple[str, str], ...]]:
    """The graph after the passes of these names, in their order, and what each changed.

    Args:
        graph: what they rewrite.
        names: of passes; docs/passes.md lists the built-in ones.
        target: for those passes that ask for one; without it they change nothing.

    Raises:
        OptionError: there is no such pass.
        InvalidGraphError: what the passes made breaks an invariant.
    """
    target = target or Target("", "", "no target")
    changes: list[tuple[str, str]] = []
    for name in names:
        graph, notes = pass_named(name).run(graph, target, **({"wanted": True} if name in ("float_io", "integer_io") else {}))
        changes += [(name, note) for note in notes]
    if names:
        validate(graph)
    return graph, tuple(changes)


def normalize(
    graph: Graph,
    target: Target | None,
    *,
    io_layout: str = "",
    io_float: bool = False,
    io_integer: bool = False,
    numerics: str = "exact",
    partial: str = "allow",
) -> tuple[Graph, tuple[tuple[str, str], ...]]:
    """The graph rewritten for a target by the passes in their order, and what each changed; the options are those of convert()."""
    if io_layout not in ("", "nchw", "nhwc"):
        raise OptionError(f"there is no layout {io_layout!r}", remedy="Use nchw or nhwc.")
    if numerics not in ("exact", "fast"):
        raise OptionError(f"there is no numerics {numerics!r}", remedy="Use exact or fast.")
    if partial not in ("allow", "forbid"):
        raise OptionError(f"there is no partial {partial!r}", remedy="Use allow or forbid.")
    if io_float and io_integer:
        raise OptionError("inputs and outputs cannot be float and integer")
    if target is None:
        return graph, ()
    options: dict[str, dict[str, Any]] = {
        "assign_layout": {"io_layout": io_layout},
        "match_add": {"numerics": numerics},
        "isolate_float": {"partial": partial},
        "float_io": {"wanted": io_float},
        "integer_io": {"wanted": io_integer},
    }
    changes: list[tuple[str, str]] = []
    for name in target.passes:
        graph, notes = pass_named(name).run(graph, target, **options.get(name, {}))
        changes += [(name, note) for note in notes]
    return graph, tuple(changes)


def _target(writer: Format, name: str) -> Target | None:
    wanted = name or writer.default_target
    if not wanted:
        return None
    target = target_named(wanted)
    if target.format != writer.name:
        known = ", ".join(item.name for item in targets().values() if item.format == writer.name) or "none"
        raise OptionError(
            f"the target {wanted} is for {target.format} files, not {writer.name}",
            remedy=f"Targets of {writer.name}: {known}.",
        )
    return target


def _carried_over(graph: Graph) -> dict[str, int]:
    constants = [tensor for tensor in graph.constants() if tensor.is_quantized]
    activations = [t for t in graph.tensors.values() if t.is_quantized and not t.is_constant]
    return {
        "quantized constants": len(constants),
        "integers in them": sum(t.data.size for t in constants if t.data is not None),
        "quantized activations": len(activations),
        "scales": sum(t.quantization.scale.size for t in (*constants, *activations) if t.quantization is not None),
    }


def _provenance(source: Path, others: tuple[Path, ...], target: Target | None, changes: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What the result says of where it came from; no paths, since a model file travels.

    Only the model's own file is hashed: files of constants can be larger than memory, and are named with their sizes.
    """
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    exact = all(pass_named(name).exact for name, _ in changes)
    return {
        "qconvert.version": qconvert.__version__,
        "qconvert.source": source.name,
        "qconvert.source_sha256": digest,
        **({"qconvert.source_data": json.dumps({item.name: item.stat().st_size for item in others})} if others else {}),
        "qconvert.target": target.name if target else "",
        "qconvert.changes": json.dumps([{"pass": name, "change": note} for name, note in changes]),
        "qconvert.scales": "all scales and zero points are the source's own" if exact else "some are new: see qconvert.changes",
    }
