"""The options of built-in formats and passes as types, so that an editor completes them and a type checker reads them.

What each option means stands where it is declared (formats, passes; docs/reference). Plugins may declare further options; these are given
in the same way, or as `**{"name": value}` where a type checker is to let them pass.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypedDict

__all__ = ["ConvertOptions", "ReadOptions"]

_File = str | PathLike[str]


class ReadOptions(TypedDict, total=False):
    """Options of whatever reads a model: those of every format, then those of TFLite, PyTorch and MNN."""

    subgraph: str
    input_shape: str
    batch: int
    rename: tuple[str, ...] | list[str]
    signature: str
    graph: _File
    modules: str
    oneflow: str
    engine: Literal["", "x86", "fbgemm", "onednn", "qnnpack"]
    mnn: _File


class ConvertOptions(ReadOptions, total=False):
    """Options of a conversion: those of reading, of writing ONNX, PyTorch and MNN, and of passes."""

    opset: int
    external_data: bool
    form: Literal["", "qdq", "qoperator", "qonnx", "program", "modules"]
    numerics: Literal["exact", "strict", "fast"]
    requantize: bool
    guards: bool
    calibration_cache: _File
    trt_version: str
    trt_calibrator: Literal["EntropyCalibration2", "MinMaxCalibration", "EntropyCalibration", "LegacyCalibration"]
    freeze: bool
    float_layers: str
    pipeline: Literal["json", "binary"]
    dump: bool
    no_mnn: bool
    custom: Literal["carry", "refuse", "keep"]
    io_layout: Literal["", "nchw", "nhwc"]
    io: Literal["", "float", "integer"]
    no_float: bool
    biases: Literal["round", "keep"]
    dynamic: Literal["", "keep", "real"]
    encodings: _File
    encodings_options: str
    fill: Literal["none", "infer"]
    range_dtype: Literal["int8", "uint8", "int16", "uint16"]
    unroll: int
    tables: Literal["missing", "chains", "chains16"]
    scope: Literal["asked", "all"]
    edges: Literal["keep", "change"]
    zero_points: Literal["shift", "symmetric"]
    rounding: Literal["up", "nearest", "mse"]
    granularity: Literal["axis", "tensor"]
    scheme: Literal["types", "symmetric", "affine"]
    reduce: Literal["weights", "activations", "both"]
    weight_bits: Literal[0, 4, 8, 16]
    activation_bits: Literal[0, 4, 8, 16]
    block_size: Literal[0, 16, 32, 64, 128, 256]
    pairs: Literal["every", "sparse"]
    fixed_point: Literal["single", "away", "double"]
