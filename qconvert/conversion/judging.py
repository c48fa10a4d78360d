"""Judges a conversion by the graph of the written file, the tensors declared as changed, and the limit on the cost of its steps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from qconvert.conversion.loading import normal_form, read_literal_graph
from qconvert.errors import LossError, OptionError, QConvertError, format_count
from qconvert.graph import Graph
from qconvert.graph.metadata import CHANGED
from qconvert.plugins import Change, Format, Pass
from qconvert.plugins.options import fill_defaults
from qconvert.rules.changed_values import changed_names, declared_changes, declared_names, narrowed_names, paired_inputs


class Written(NamedTuple):
    """What was written, as a graph.

    Attributes:
        graph: of the file; if the file is not read, the graph that was written.
        unread: why the file is not read; "" if it is.
    """

    graph: Graph
    unread: str = ""


def read_back(path: Path, writer: Format, graph: Graph, checked: Any) -> Written:
    """Reads a file back that was just written.

    Args:
        path: the file, or folder.
        writer: its format.
        graph: that was written.
        checked: what the format's `check` returned.
    """
    from qconvert.passes.decompose_weights import dequantized_casts

    graph = dequantized_casts(graph)  # weights that were decomposed have their scales again when they are read
    try:
        if writer.as_written is not None:
            found = writer.as_written(path, graph, checked)
        elif writer.read is not None:
            found = normal_form(read_literal_graph(path, writer, fill_defaults({}, writer.read_options)), writer)
        else:
            found = None
    except QConvertError as error:
        return Written(graph, f"the file is not read back: {error.reason}")
    return Written(graph, f"files of the format {writer.name} are not read") if found is None else Written(found)


class Declared:
    """Collects, pass by pass, what is changed in a way that is not exact; an observer of a pipeline.

    Args:
        graph: what is converted; if it is a conversion's result, that conversion's changes stay declared.
    """

    def __init__(self, graph: Graph) -> None:
        self._names = set(declared_names(graph))
        self._narrowed: set[str] = set()

    def __call__(self, item: Pass, before: Graph, after: Graph, notes: tuple[Change, ...]) -> None:
        if after is before:
            return
        if self._names:  # a constant that is stored otherwise from here on, under another name
            pairs = ((a, b) for _, a, b in paired_inputs(before, after) if a.is_constant and b.is_constant)
            self._names.update(b.name for a, b in pairs if a.name in self._names and b.name not in before.tensors)
        if any(not note.exact for note in notes):
            changed = changed_names(before, after)
            self._narrowed = (self._narrowed | narrowed_names(before, after)) - changed
            self._names |= changed | self._narrowed
            new = (tensor for name, tensor in after.tensors.items() if name not in before.tensors and not tensor.is_constant)
            self._names.update(tensor.name for tensor in new if tensor.is_quantized)

    def provenance(self, graph: Graph) -> dict[str, str]:
        """The entry of the metadata that says so, for the graph that is written; none if nothing has changed."""
        found = declared_changes(graph, self._names, self._narrowed)
        return {CHANGED: json.dumps(found)} if found else {}


#: Decibels of signal to noise below which a step stops a conversion, and below which an output is not equal in a check; 8 bits used in full
#: give about 50.
LIMIT = 30.0
_LISTED = 8


def refuse_losses(changes: Iterable[Change], limit: float = LIMIT) -> None:
    """Refuse a conversion of which a step leaves a tensor below a ratio of signal to noise.

    Args:
        changes: what the passes changed.
        limit: in decibels.

    Raises:
        LossError: there are such tensors.
    """
    if math.isnan(limit):
        raise OptionError("min_tensor_sqnr is not a number", remedy="Give decibels, such as 30.", rule="not-a-number")
    below = [(change.by, cost) for change in changes for cost in change.costs if cost.sqnr_db is not None and cost.sqnr_db < limit]
    if not below:
        return
    below.sort(key=lambda item: item[1].sqnr_db or 0.0)
    lines = [f"- {name}: {cost}" for name, cost in below[:_LISTED]]
    lines += [f"and {len(below) - _LISTED} more"] if len(below) > _LISTED else []
    worst = below[0][1].sqnr_db or 0.0
    raise LossError(
        f"the conversion leaves {format_count(len(below), 'tensor')} below {limit:g} dB:\n" + "\n".join(lines),
        remedy=f"Use another target or other passes, or allow the loss with --min-tensor-sqnr {int(worst // 1)}.",
        rule="sqnr-below-limit",
    )
