"""to_torch(): a canonical graph as a module of PyTorch."""

from __future__ import annotations

from typing import Any

from qconvert.arguments import with_checked_arguments
from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.errors import OptionError
from qconvert.formats.torch.quantized_modules.writer import live as live_modules
from qconvert.formats.torch.writer import live
from qconvert.graph import Graph
from qconvert.plugins import format_named, passes
from qconvert.targets.audit import refuse_violations


@with_checked_arguments
def to_torch(graph: Graph, *, target: str = "", form: str = "program") -> Any:
    """A torch.nn.Module that computes what a graph means: what save() would write as .pt2 or .pt, not yet exported.

    It takes the graph's inputs in order and returns a tuple of its outputs, integers where the graph stores integers. It is a
    torch.fx.GraphModule: `module.graph` shows its calls, `module.print_readable()` its code. In the form "program" buffers have the
    source's names of weights; in the form "modules" layers are modules of torch.ao.nn.quantized, which take and give quantized tensors.

    Args:
        graph: as from load().
        target: the name of a target of PyTorch, which says how activations and weights are stored; "" for the form's own.
        form: "program", of operators on plain integers, or "modules".

    Raises:
        MissingPackageError: PyTorch is not installed.
        OptionError: there is no such form or target, or the target is of another form or format.
        UnsupportedError: operators that have no form in PyTorch; kinds are all listed.

    Examples:
        >>> module = qconvert.to_torch(qconvert.load("model.tflite"))
        >>> scores, = module(torch.zeros(1, 96, 96, 1, dtype=torch.int8))
    """
    if form not in ("program", "modules"):
        raise OptionError(f"there is no form {form!r}", remedy="Use program or modules.", rule="unknown-form")
    chosen = chosen_target(format_named("torch"), target, form)
    assert chosen is not None
    options = {option.name: option.default for name in chosen.passes for option in passes()[name].options}
    graph, _ = normalize(graph, chosen, **options)
    refuse_violations(graph, chosen)
    return live_modules(graph) if form == "modules" else live(graph, str(chosen.write_options.get("numerics", "exact")))
