"""The report of a conversion, and the provenance in its result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qconvert.errors import UnsupportedError, format_count, quote_some
from qconvert.files import file_digest
from qconvert.graph import Graph, Op, count_kinds
from qconvert.graph.metadata import (
    ASSUMED,
    CHANGES,
    DENSIFIED,
    GUESSED_SHAPES,
    IGNORED_SCALES,
    OBSERVED_SCALES,
    OPTIONS,
    SCALES,
    SCHEMA,
    SCHEMA_NUMBER,
    SIDE_FILE,
    SOURCE,
    SOURCE_DATA,
    SOURCE_ENGINE,
    SOURCE_SHA256,
    TARGET,
    TRAINED_SCALES,
    VERSION,
    origin,
)
from qconvert.operators.shapes_and_functions import all_graphs, closed_graphs, is_quantized
from qconvert.plugins import Change, Target, declared_options
from qconvert.plugins.results import changes_table
from qconvert.tables import Rows, Shown, format_sentence, format_text
from qconvert.targets.audit import computes_in_float
from qconvert.version import __version__


@dataclass(frozen=True, slots=True, repr=False)
class ConversionReport(Shown):
    """What a conversion did.

    Attributes:
        source, result: the files.
        source_format, result_format, target: names.
        operators: kinds in the written result with their counts; of a format that is not read, those of the graph that was written.
        quantized: whether anything in the result has a scale.
        on_floats: kinds of the operators in the result that run in float, with their counts.
        changes: what each pass and the writer changed, whether exactly, and what it cost.
        kept: counts of what was carried over (weights, scales …).
        audit: which operators the target runs as integer kernels; see targets/audit.py.
        seconds: wall time.
        provenance: the origin of the model, from the file's metadata.
        verified: with verify_each, each pass that changed the graph and what it did to the outputs.
        files: options that named further files to read, with these files.
        scales: the separate file that holds the result's scales; "" if the result holds them.
        custom: operators of the result that run only where they are registered, with their counts.
        source_operators: how many operators the source has.
    """

    source: str
    result: str
    source_format: str
    result_format: str
    target: str
    operators: Mapping[str, int]
    quantized: bool
    on_floats: Mapping[str, int]
    changes: tuple[Change, ...]
    kept: Mapping[str, int]
    audit: tuple[Any, ...] = ()
    seconds: float = 0.0
    provenance: Mapping[str, str] = field(default_factory=dict)
    verified: tuple[tuple[str, str], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    scales: str = ""
    custom: Mapping[str, int] = field(default_factory=dict)
    source_operators: int = 0

    @property
    def kept_all(self) -> bool:
        """Whether every scale and integer that was kept has its dequantized value."""
        return keeps_values(self.changes)

    @property
    def sentence(self) -> str:
        """What became of the source."""
        from qconvert.targets.audit import audited_counts

        runs = f"; {audited_counts(self.audit)}" if self.audit else ""
        kept = "all scales and integers are the source's" if self.kept_all else "some scales or integers are new: see the changes"
        return f"{format_text(Path(self.source).name)} became {format_text(Path(self.result).name)}: {kept}{runs}."

    def tables(self) -> tuple[Rows, ...]:
        """Tables of the parameters carried over, the changes and costs of passes, and the operators run as integers."""
        kept = tuple((what, f"{count:,}") for what, count in self.kept.items())
        note = "None was changed." if self.kept_all else "Some are new: see the changes."
        audit = tuple((line.kind, str(line.count), line.runs_on, format_sentence(line.reason)) for line in self.audit)
        marks = tuple("" if line.integer else "approximate" for line in self.audit)
        return (
            Rows("Carried over", ("what", ">how many"), kept, note=note),
            changes_table(self.changes),
            Rows(f"What runs as integers on {format_text(self.target)}", ("operator", ">how many", "runs on", "why"), audit, marks),
        )


def keeps_values(changes: Iterable[Change]) -> bool:
    """Whether no step cost a tensor anything."""
    return not any(change.costs for change in changes)


def remarks(graph: Graph) -> tuple[str, ...]:
    """What a reader took otherwise than the file states it, in words."""
    found = []
    made = origin(graph.metadata)
    if VERSION in made and made.get(SCHEMA) != SCHEMA_NUMBER:
        found.append(
            f"warning: the file was written by qconvert {made[VERSION]}, whose metadata have other entries: operators that it decomposed "
            "are read as they stand, and a check cannot repeat its conversion; convert the first source again"
        )
    if ignored := _read_noted_names(graph, IGNORED_SCALES):
        tensors = format_count(len(ignored), "tensor", "state")
        words = f"scales that its kernels do not use ({quote_some(ignored, 3)}): integers are read as kernels take them"
        found.append(f"warning: {tensors} {words}")
    if densified := _read_noted_names(graph, DENSIFIED) if graph.is_from("tflite") else []:
        constants = f"{len(densified)} sparse constants have" if len(densified) > 1 else "1 sparse constant has"
        found.append(f"note: {constants} all zeros now ({quote_some(densified, 3)}), and more bytes")
    if guessed := _read_noted_names(graph, GUESSED_SHAPES) if graph.is_from("torch") else []:
        said = "; ".join(map(str, guessed))
        found.append(f"note: the file does not state shapes of inputs; by the first layers they are {said} (--input-shape states others)")
    if graph.is_from("torch") and (engine := graph.metadata.get(SOURCE_ENGINE)):
        found.append(f"note: operators are read with the rounding of PyTorch's engine {engine} (--engine names another)")
    found += _remark_trained_scales(graph) if graph.is_from("torch") else []
    found += [f"note: {text}" for text in _read_noted_names(graph, ASSUMED)] if graph.is_from("torch") or graph.is_from("tflite") else []
    return tuple(found)


def _remark_trained_scales(graph: Graph) -> list[str]:
    """What is said of a network that was read before PyTorch converted it."""
    trained, observed = _read_noted_names(graph, TRAINED_SCALES), _read_noted_names(graph, OBSERVED_SCALES)
    if not trained:
        return []
    found = [
        f"note: {len(trained)} fake quantizations have the scales that the file stores, with which the network was trained and "
        "evaluated; PyTorch's convert() would compute others"
    ]
    if observed:
        found.append(
            f"warning: {len(observed)} of them have an observer that is still enabled ({quote_some(observed, 3)}): PyTorch changes "
            "their scales in each run; "
            "call torch.ao.quantization.disable_observer before export"
        )
    return found


def _read_noted_names(graph: Graph, key: str) -> list[str]:
    """The names that an entry of the metadata lists; none where it is no list of JSON."""
    try:
        return list(json.loads(graph.metadata.get(key, "[]")))
    except (ValueError, TypeError):  # the metadata of a file that someone else wrote
        return []


def on_floats(graph: Graph, target: Target | None) -> dict[str, int]:
    """Kinds of operators that compute in float, in functions too, with their counts.

    Args:
        graph: the result.
        target: its word counts where its kernels are known; without it an operator does whose results have no scale.
    """
    found: list[Op] = []
    for inner in closed_graphs(graph):
        verdicts = target.verdicts(inner, final=False) if target is not None and target.knows_kernels else ((op, None) for op in inner.ops)
        found += (op for op, verdict in verdicts if computes_in_float(inner, op, verdict))
    return dict(count_kinds(found).most_common())


def refuse_floats(graph: Graph, target: Target) -> None:
    """Refuse a file, of which nothing may run in float, for the operators in it that would.

    Args:
        graph: the written file's.
        target: whose kernels are known.

    Raises:
        UnsupportedError: there are such operators; all are counted.
    """
    found = on_floats(graph, target)
    if found and is_quantized(graph):
        listed = ", ".join(f"{count} {kind}" for kind, count in found.items())
        raise UnsupportedError(
            f"operators of the written model would run in float: {listed}",
            remedy="Leave out --no-float, or use --numerics fast, which adds no operators for the rounding of the source's kernels.",
            rule="float-operators",
        )


def carried_over(graph: Graph) -> dict[str, int]:
    """Counts of what a reader found that a conversion is to keep."""
    tensors = [tensor for _, inner in all_graphs(graph) for tensor in inner.tensors.values() if tensor.is_quantized]
    constants = [tensor for tensor in tensors if tensor.is_constant]
    activations = [tensor for tensor in tensors if not tensor.is_constant]
    return {
        "quantized constants": len(constants),
        "integers in them": sum(t.data.size for t in constants if t.data is not None),
        "quantized activations": len(activations),
        "scales": sum(t.quantization.scale.size for t in (*constants, *activations) if t.quantization is not None),
    }


def provenance(
    source: Path,
    others: tuple[Path, ...],
    target: Target | None,
    changes: tuple[Change, ...],
    passes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    files: Mapping[str, Path] = MappingProxyType({}),
) -> dict[str, str]:
    """What the result says of where it came from; no paths, since a model file travels.

    Args:
        source: the model's file.
        others: further files that belong to it.
        target: that it was fitted to.
        changes: what passes did.
        passes: those that the user named.
        options: of the conversion.
        files: those that options name, by the option.

    Only the model's own file is hashed: files of constants can be larger than memory, and are named with their sizes.
    """
    given = noted_options(options or {})
    return {
        VERSION: __version__,
        SCHEMA: SCHEMA_NUMBER,
        SOURCE: source.name,
        SOURCE_SHA256: file_digest(source),
        **({SOURCE_DATA: json.dumps({item.name: item.stat().st_size for item in others})} if others else {}),
        **{f"{SIDE_FILE}{option}": item.name for option, item in files.items()},
        **{f"{SIDE_FILE}{option}_sha256": file_digest(item) for option, item in files.items()},
        TARGET: target.name if target else "",
        OPTIONS: json.dumps({"passes": list(passes), "options": given}, default=str),
        CHANGES: json.dumps([_serialize_change(change) for change in changes]),
        SCALES: "all scales and zero points are the source's own" if keeps_values(changes) else "some are new: see qconvert.changes",
    }


def noted_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not at their defaults, without those that name files."""
    known = declared_options()
    return {
        name: value
        for name, value in sorted(options.items())
        if name not in known
        or (value != known[name].default and not known[name].is_file and not known[name].scales and name != "encodings_options")
    }


def _serialize_change(change: Change) -> dict[str, Any]:
    """A change as the metadata hold it."""
    costs = [{"tensor": cost.tensor, "sqnr_db": cost.sqnr_db, "largest": cost.largest} for cost in change.costs]
    return {"pass": change.by, "change": change.text, "exact": change.exact, **({"costs": costs} if costs else {})}
