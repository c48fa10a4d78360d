"""What a checkpoint holds, as plain data: its layers in blocks and its other tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qconvert.checkpoints.source import CheckpointSource
from qconvert.checkpoints.weight import E2M1, BlockWeight

__all__ = ["checkpoint_summary"]


def checkpoint_summary(path: Path) -> dict[str, Any] | None:
    """The layers and tensors of the checkpoint that a .safetensors file belongs to; None where it has no weights in blocks.

    Args:
        path: of the file.

    Raises:
        QConvertError: it cannot be read, is damaged, or has layers in a form that is not covered.
    """
    source = CheckpointSource.of(path)
    if not source.layers:
        return None
    layers = []
    for name, (container, _) in source.layers.items():
        layers.append({"name": name, "container": container.title, **_describe_weight(source.weight(name))})
        source.release(name)
    tensors = [{"name": name, "dtype": str(item.dtype), "shape": list(item.shape)} for name, item in source.plain.items()]
    return {"notes": list(source.notes), "layers": layers, "tensors": tensors, "files": len({*source.checkpoint.places.values()})}


def _describe_weight(weight: BlockWeight) -> dict[str, Any]:
    kind = "integers"
    if weight.table is not None:
        kind = "FP4 (E2M1)" if weight.table.tobytes() == E2M1.tobytes() else "codes of a table"
    return {
        "outputs": weight.outputs,
        "inputs": weight.inputs,
        "bits": weight.bits,
        "values": kind,
        "block": weight.block,
        "scales": weight.scale.dtype.name + (" and one of float32" if weight.outer is not None else ""),
        "zero_points": None if weight.zero is None else [int(weight.zero.min()), int(weight.zero.max())],
        "has_offsets": weight.offset is not None,
        "has_act_order": weight.groups is not None,
        "has_factors": weight.factors is not None,
    }
