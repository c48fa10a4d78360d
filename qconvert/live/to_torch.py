"""to_torch(): a canonical graph as a module of PyTorch."""

from __future__ import annotations

from typing import Any

from qconvert.conversion.normalizing import normalize
from qconvert.errors import OptionError
from qconvert.formats.torch.writer import live
from qconvert.graph import Graph
from qconvert.plugins import passes, target_named
from qconvert.targets.violations import refuse_violations

__all__ = ["to_torch"]


def to_torch(graph: Graph, *, target: str = "torch") -> Any:
    """A torch.nn.Module that computes what a graph means; what save() would write as .pt2, not yet exported.

    It takes the graph's inputs in order and returns a tuple of its outputs, integers where the graph stores integers. It is a
    torch.fx.GraphModule: `module.graph` shows its calls, `module.print_readable()` its code, buffers have the source's names of weights.

    Args:
        graph: as from load().
        target: the name of a target of PyTorch, which says how activations and weights are stored.

    Raises:
        MissingPackageError: PyTorch is not installed.
        OptionError: there is no such target, or it is of another format.
        UnsupportedError: operators that have no form in PyTorch; kinds are all listed.

    Examples:
        >>> module = qconvert.to_torch(qconvert.load("model.tflite"))
        >>> scores, = module(torch.zeros(1, 96, 96, 1, dtype=torch.int8))
    """
    chosen = target_named(target)
    if chosen.format != "torch":
        raise OptionError(f"the target {target} is of the format {chosen.format}", remedy="Use torch, torch-x86 or torch-xnnpack.")
    options = {option.name: option.default for name in chosen.passes for option in passes()[name].options}
    graph, _ = normalize(graph, chosen, **options)
    refuse_violations(graph, chosen)
    return live(graph, str(chosen.write_options.get("numerics", "exact")))
