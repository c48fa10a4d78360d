"""What the user asks of a graph that has been read: a part of it, other sizes of inputs, another batch, other names; for every format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qconvert.errors import OptionError
from qconvert.graph import Graph
from qconvert.plugins import Format
from qconvert.plugins.options import is_for_every_format, pick_declared
from qconvert.rules.validation import validate

__all__ = ["adapt_graph", "pick_reader_options", "pick_shared_options"]


def pick_reader_options(reader: Format, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the reader of a format takes itself, without those that are for every format."""
    return pick_declared(options, (option for option in reader.read_options if not is_for_every_format(option)))


def pick_shared_options(reader: Format, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for every format that are not at their default, and that the reader does not take itself."""
    shared = [option for option in reader.read_options if is_for_every_format(option)]
    return {option.name: options[option.name] for option in shared if options.get(option.name, option.default) != option.default}


def adapt_graph(graph: Graph, options: Mapping[str, Any]) -> Graph:
    """The graph with what is asked for, in this order: the part between tensors, sizes of inputs, the batch, names. All names in the
    options are those that the graph has before.

    Args:
        graph: in its format's normal form.
        options: as asked() gives them; without any the graph comes back as it is.

    Raises:
        OptionError: a name is none of the graph's, or sizes do not go through it; the operator is named.
    """
    if not options:
        return graph
    from qconvert.conversion.adapting.input_sizes import with_batch, with_shapes
    from qconvert.conversion.adapting.named_tensors import cut_out, rename_tensors

    if options.get("batch", 0) < 0:
        raise OptionError(f"the batch is {options['batch']}; it must be at least 1", remedy="Write --batch 4.", rule="batch-not-positive")
    whole = graph
    if text := options.get("subgraph"):
        graph = cut_out(graph, text)
    if text := options.get("input_shape"):
        graph = with_shapes(graph, text)
    if number := options.get("batch"):
        graph = with_batch(graph, number)
    if pairs := options.get("rename"):
        graph = rename_tensors(graph, pairs, whole)
    validate(graph)
    return graph
