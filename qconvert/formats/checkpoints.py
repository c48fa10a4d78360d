"""Checkpoints with weights in blocks as formats that a checkpoint of another tool is converted to (qconvert.checkpoints)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.plugins import Format, Option, hookimpl

if TYPE_CHECKING:
    from qconvert.checkpoints.repacking import Progress, Repacked
    from qconvert.checkpoints.source import CheckpointSource

#: Names of containers that are written, and what their layers are; the containers themselves are imported when one is.
SUMMARIES = {
    "gptq": "GPTQ v1, 2, 3, 4 or 8 bits",
    "gptq-v2": "GPTQ v2, 2, 3, 4 or 8 bits",
    "awq": "AWQ (gemm), 4 bits",
    "compressed-tensors": "compressed-tensors (pack-quantized), 4 or 8 bits",
    "compressed-tensors-int8": "compressed-tensors (int-quantized), 4 or 8 bits in bytes",
    "compressed-tensors-fp8": "compressed-tensors (float-quantized), FP8",
    "mxfp8": "MXFP8 of compressed-tensors",
    "nvfp4": "NVFP4 of compressed-tensors",
    "mxfp4": "MXFP4 of compressed-tensors",
    "nvfp4-modelopt": "NVFP4 of ModelOpt",
    "awq-modelopt": "INT4 AWQ of ModelOpt",
    "fp8-modelopt": "FP8 of ModelOpt, one scale for a tensor",
    "fp8": "FP8 of DeepSeek and Qwen, blocks of 128 x 128",
    "mlx": "MLX (affine), 2 to 8 bits",
    "mlx-mxfp4": "MXFP4 of MLX",
    "mlx-nvfp4": "NVFP4 of MLX",
    "mlx-mxfp8": "MXFP8 of MLX",
}
_OPTIONS = (Option("requantize", bool, False, "Checkpoints: take the nearest weights where the result has no room for the source's."),)


def _repack(source: CheckpointSource, folder: Path, options: Mapping[str, Any], progress: Progress, container: str) -> Repacked:
    from qconvert.checkpoints.repacking import repack
    from qconvert.checkpoints.source import CONTAINERS

    found = next(item for item in CONTAINERS if item.name == container)
    return repack(source, folder, found, requantize=bool(options.get("requantize")), progress=progress)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(name, (), f"a checkpoint: {summary}", repack=partial(_repack, container=name), write_options=_OPTIONS)
        for name, summary in SUMMARIES.items()
    ]
