"""A sample of the ONNX operator matrix (fixtures/zoo/operators_onnx.py): written to ONNX again and to TFLite, and run in both runtimes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nodes import equal

import qconvert
from qconvert import QConvertError, convert, load
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnx_rewrites import cpu_saturates, with_unsigned_weights

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures" / "zoo"))

import operators_onnx

#: Of the whole matrix every so many cases.
EVERY = 67
#: Cases that are always taken: forms that once were refused, wrong, or not taken at all by TFLite.
CHOSEN = [
    "Gemm/004.float32", "Gemm/007.float32", "Gemm/008.qdq_int8", "Gemm/009.float32", "Gemm/011.float32", "MatMul/001.float32",
    "MatMul/002.qdq_int8", "MatMul/003.float32", "DepthToSpace/001.float32", "DepthToSpace/001.qdq_int8", "OneHot/002.float32",
    "OneHot/004.float32", "GatherElements/000.inputs", "GatherElements/002.qdq_int8", "GatherND/003.float32", "ScatterElements/001.float32",
    "ScatterElements/002.qdq_int8", "ScatterND/022.inputs", "ScatterND/021.float32", "TopK/001.float32", "TopK/002.float32",
    "TopK/005.qdq_int8", "Einsum/004.float32", "Einsum/008.float32", "Einsum/012.float32", "Einsum/014.float32", "Transpose/007.float32",
    "AveragePool/001.float32", "AveragePool/001.qdq_int8", "AveragePool/016.float32", "AveragePool/015.float32", "AveragePool/022.float32",
    "Resize/003.float32", "Resize/004.qdq_int8", "Resize/035.float32", "Resize/060.float32", "Resize/106.float32", "Resize/112.float32",
    "Resize/115.float32", "Upsample/002.float32", "Attention/002.float32", "Attention/004.float32", "RotaryEmbedding/001.float32",
    "GroupNormalization/000.float32", "GroupNormalization/004.float32", "LayerNormalization/005.float32", "LpNormalization/000.float32",
    "MeanVarianceNormalization/001.float32", "Hardmax/001.float32", "CenterCropPad/001.float32", "Compress/003.float32",
    "MaxUnpool/000.float32", "AffineGrid/001.float32", "Erf/000.float32", "Erf/000.qdq_int8", "Sinh/000.float32", "Asinh/000.float32",
    "Acosh/000.float32", "Atanh/000.float32", "Shrink/008.float32", "Swish/008.float32", "Elu/008.qdq_int8", "LpPool/005.float32",
    "GlobalLpPool/000.float32", "ArgMax/006.float32", "IsInf/008.float32", "ReduceL2/040.float32", "Clip/013.float32",
    "HannWindow/000.float32", "SoftmaxCrossEntropyLoss/001.float32", "FusedMatMul/microsoft_001.float32", "FusedConv/microsoft_000.float32",
    "SkipLayerNormalization/microsoft_000.float32", "BiasGelu/microsoft_000.float32", "QuickGelu/microsoft_000.float32",
    "Size/000.float32", "EyeLike/001.float32", "Conv/026.float32", "Conv/026.qdq_uint8", "ConvTranspose/006.float32",
    "ConvTranspose/007.qdq_int8", "ConvTranspose/008.float32", "ConvTranspose/009.qdq_uint8", "Pad/003.float32", "Pad/013.qdq_int8",
    "Pad/017.float32", "Pad/021.float32", "BitwiseNot/001.float32", "BitwiseOr/002.float32", "BitwiseAnd/004.float32",
    "BitShift/000.float32", "Mod/000.int64", "Mod/020.float32", "Mod/023.float32", "Mod/020.qdq_int8",
]  # fmt: skip
#: The same for ONNX alone.
ONNX_ALONE = ["NonZero/000.float16", "QLinearConv/microsoft_000.float32", "Unique/000.float32"]
#: Operators of onnxruntime that become several ones of ONNX: real numbers are rounded once more, or once less.
ROUNDED = {"QLinearAveragePool", "MatMulIntegerToFloat"}
#: Operators that onnxruntime itself computes by another rule than ONNX's: indices that are no whole numbers.
OTHERWISE = {"OneHot/006.float32"}


@cache
def named() -> dict[str, Any]:
    return {f"{case.operator}/{case.name}": case for case in operators_onnx.cases()}


def sample(part: int) -> Iterator[tuple[str, Any, dict[str, Any], list[Any]]]:
    """Names, models, inputs and outputs of cases that onnxruntime runs; `part` is 0 or 1."""
    names = [*CHOSEN, *ONNX_ALONE, *(name for name in list(named())[::EVERY] if name not in CHOSEN)]
    for name in names[part::2]:
        try:
            model, feeds = operators_onnx.made(named()[name])
            yield name, model, feeds, unsaturated(model, feeds)
        except Exception:  # onnx's and onnxruntime's errors share no class but Exception
            assert name not in CHOSEN, f"{name} does not run in onnxruntime"


def unsaturated(model: Any, feeds: dict[str, Any]) -> list[Any]:
    """The outputs in onnxruntime; where its sums of products of uint8 and int8 saturate, of a copy whose weights are unsigned."""
    import onnx

    changed = with_unsigned_weights(model.SerializeToString(), optimize=False) if cpu_saturates() else None
    return operators_onnx.runs(model if changed is None else onnx.load_from_string(changed), feeds)


@pytest.mark.formats
def test_names_are_unique() -> None:
    assert len(named()) == sum(1 for _ in operators_onnx.cases()) > 8000


@pytest.mark.onnxruntime
@pytest.mark.parametrize("part", [0, 1])
def test_onnx_comes_back_equal(tmp_path: Path, part: int) -> None:
    source, result, wrong, count = tmp_path / "a.onnx", tmp_path / "b.onnx", [], 0
    for name, model, feeds, wanted in sample(part):
        source.write_bytes(model.SerializeToString())
        convert(source, result, force=True)
        import onnx

        found = unsaturated(onnx.load(result), feeds)
        wrong += [] if equal(wanted, found) or (name.split("/")[0] in ROUNDED and is_near(wanted, found)) else [name]
        count += 1
    assert not wrong
    assert count >= 80


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("part", [0, 1])
def test_tflite_is_equal_or_refused(tmp_path: Path, part: int) -> None:
    source, result, wrong, converted = tmp_path / "a.onnx", tmp_path / "b.tflite", [], 0
    for name, model, feeds, wanted in sample(part):
        source.write_bytes(model.SerializeToString())
        try:
            convert(source, result, force=True)
        except QConvertError as error:
            if name in CHOSEN or error.code not in ("unsupported-op", "loss-over-limit"):
                wrong.append(f"{name}: {error}")
            continue
        load(result)
        loaded = LiteRT(result.read_bytes())
        given = [fitted(feeds[value.name], dtype) for value, (dtype, _) in zip(model.graph.input, loaded.inputs.values(), strict=True)]
        found = loaded.run_in_order(given)
        reasons = [differs(name, a, b) for a, b in zip(wanted, found, strict=True)]
        if any(reasons) and name not in OTHERWISE and not (is_quantized(name) and is_explained(source, result, feeds)):
            wrong += [f"{name}: {reason}" for reason in reasons if reason]
        converted += 1
    assert not wrong, "\n".join(wrong)
    assert converted >= 65


def is_quantized(name: str) -> bool:
    return "qdq" in name or name.startswith("Q")


def is_explained(source: Path, result: Path, feeds: dict[str, Any]) -> bool:
    """Whether more than a step is within what the kernels' own arithmetic allows: tables, fixed quantizations, coarse multipliers."""
    inputs = source.with_suffix(".npz")
    np.savez(inputs, **feeds)
    return bool(qconvert.check(source, result, data=[inputs]).passed)


def is_near(wanted: list[Any], found: list[Any]) -> bool:
    """Whether integers differ by one step at most, and float values by some last bits."""
    step = 1 if np.asarray(wanted[0]).dtype.kind in "iu" else 0
    return all(np.allclose(a.astype(np.float64), b.astype(np.float64), 1e-6, step) for a, b in zip(wanted, found, strict=True))


#: Stored integers whose type is another one in TFLite: the shift that gives it.
SHIFTS = {("uint8", "int8"): -128, ("int8", "uint8"): 128, ("uint16", "int16"): -32768}


def fitted(values: Any, dtype: str) -> Any:
    shift = SHIFTS.get((values.dtype.name, dtype), 0)
    return values if values.dtype.name == dtype else (values.astype(np.int64) + shift).astype(dtype)


def differs(name: str, wanted: Any, found: Any) -> str:
    wanted, found = np.asarray(wanted), np.asarray(found)
    if wanted.shape != found.shape:
        return f"shape {found.shape}, not {wanted.shape}"
    if wanted.dtype.kind in "iu":
        difference = np.abs(fitted(wanted, found.dtype.name).astype(np.int64) - found.astype(np.int64)).max(initial=0)
        return f"integers by {difference}" if difference > is_quantized(name) else ""
    if wanted.dtype.kind == "b":
        return "" if (wanted == found).all() else "truth values"
    near = 4e-3 if wanted.dtype == np.float16 else 1e-4 if name.startswith("Tan/") else 1e-5
    return "" if np.allclose(wanted.astype(np.float64), found.astype(np.float64), near, near, equal_nan=True) else "float values"
