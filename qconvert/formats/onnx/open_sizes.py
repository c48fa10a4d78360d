"""Copies of .onnx files whose inputs take any sizes: onnxruntime refuses others than those that a file states, whatever its nodes take."""

from __future__ import annotations

from pathlib import Path

from qconvert.formats.onnx.container import external_files, load_proto

__all__ = ["with_open_sizes"]


def with_open_sizes(path: Path, folder: Path) -> Path | None:
    """A copy of a file, in a folder that is made, that states no sizes of inputs, outputs and tensors inside; None for a file with
    constants in others next to it.

    Raises:
        QConvertError: see load_proto().
    """
    if external_files(path):
        return None
    model = load_proto(path)
    for value in (*model.graph.input, *model.graph.output):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            size.dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]
    folder.mkdir()
    (folder / path.name).write_bytes(model.SerializeToString())
    return folder / path.name
