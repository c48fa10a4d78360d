"""Copies of .onnx files with dynamic dimensions: onnxruntime refuses inputs of other sizes than the file states."""

from __future__ import annotations

from pathlib import Path

from qconvert.formats.onnx.container import external_files, load_proto

__all__ = ["with_dynamic_dimensions"]


def with_dynamic_dimensions(path: Path, folder: Path) -> Path | None:
    """Copy a file to a new folder with dynamic dimensions of inputs, outputs and inner tensors; None for a file with external
    constants.

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
