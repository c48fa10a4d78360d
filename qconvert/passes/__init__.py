"""Rewritings of the canonical graph, one a file. Each takes (graph, target) and returns the new graph and what it changed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Pass, hookimpl

if TYPE_CHECKING:
    from qconvert.graph import Graph

#: Name and what it changes. All of these are exact.
BUILTIN = {
    "fuse_pad": "a Pad with real zero before a convolution becomes the convolution's own padding",
    "assign_layout": "spatial operators get the target's layout, with the fewest Transposes",
    "match_add": "additions round as the source's kernel does, for every pair of inputs",
    "store_activations": "8-bit activations are stored as the target's integer type; the real values stay the same",
    "guard_saturation": "weights that the target's kernels would add with saturation are stored as uint8",
    "float_io": "quantized graph inputs and outputs become float, with the conversion inside the graph",
}


def _runner(name: str) -> Any:
    def run(graph: Graph, *arguments: Any, **options: Any) -> Any:
        return import_module(f"qconvert.passes.{name}").run(graph, *arguments, **options)

    return run


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    return [Pass(name, summary, _runner(name)) for name, summary in BUILTIN.items()]
