"""Passes for OpenVINO: operators round once, and tensors of a graph that was read get their names back."""

from __future__ import annotations

from collections import Counter

from qconvert.plugin import Change, Graph, Target


def drop_source_rounding(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change, ...]]:
    """Remove the attribute `arithmetic` of operators: FakeQuantize rounds the exact value once, ties to even."""
    changed = [op for op in graph.ops if op.attributes.get("arithmetic")]
    if not changed:
        return graph, ()
    ops = tuple(op.with_attributes(arithmetic="") if op.attributes.get("arithmetic") else op for op in graph.ops)
    counts = Counter(f"{op.kind} ({op['arithmetic']})" for op in changed)
    said = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    return graph.evolve(ops=ops), (Change(f"rounded once, not as the source's kernels round: {said}", exact=False),)


def restore_names(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change, ...]]:
    """Rename quantized tensors such as `x/int8` to `x`, the name of their float values in the file, if it is free."""
    names: dict[str, str] = {}
    for name, tensor in graph.tensors.items():
        real = name.removesuffix(f"/{tensor.dtype}")
        if real != name and real not in graph and tensor.is_quantized and name not in graph.public:
            names.setdefault(real, name)
    return graph.with_names({name: real for real, name in names.items()}), ()
