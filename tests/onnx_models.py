"""Quantizes the networks of onnx_networks with onnxruntime's quantization tools, in memory as far as they allow.

    data = quantized("conv", quant_format="QOperator", activation_type="QUInt8", weight_type="QInt8", per_channel=True)
    inputs = random_inputs(data, seed=1)
    outputs = run(data, inputs)

CASES holds every combination that a test may want to go through, as {name: callable without arguments -> bytes}; a callable caches its
result. Names are NETWORK-TYPES[-pc]-FORMAT, such as conv-S8S8-pc-qdq; groups of them are STATIC, WIDE, OPTIONS and DYNAMIC_CASES.
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from onnx_networks import BLOCKS, DYNAMIC, NETWORKS, Network, build

from qconvert.runtimes.onnxruntime import OnnxRuntime

Array = np.ndarray[Any, np.dtype[Any]]
Case = Callable[[], bytes]

_ACTIVATIONS = {"S8": "QInt8", "U8": "QUInt8", "S16": "QInt16", "U16": "QUInt16"}
_WEIGHTS = {**_ACTIVATIONS, "S4": "QInt4", "U4": "QUInt4"}
#: Element types of inputs, by onnxruntime's names. Integers are indices: below the smallest table of the networks (2 segments).
_INPUTS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "tensor(float)": lambda rng, shape: rng.normal(0, 1, shape).astype(np.float32),
    "tensor(bool)": lambda rng, shape: rng.integers(0, 2, shape).astype(np.bool_),
    "tensor(int32)": lambda rng, shape: rng.integers(0, 2, shape).astype(np.int32),
    "tensor(int64)": lambda rng, shape: rng.integers(0, 2, shape).astype(np.int64),
    "tensor(int16)": lambda rng, shape: rng.integers(-(2**15), 2**15, shape).astype(np.int16),
    "tensor(uint16)": lambda rng, shape: rng.integers(0, 2**16, shape).astype(np.uint16),
    "tensor(int8)": lambda rng, shape: rng.integers(-128, 128, shape).astype(np.int8),
    "tensor(uint8)": lambda rng, shape: rng.integers(0, 256, shape).astype(np.uint8),
}


@contextmanager
def _silence() -> Iterator[None]:
    """The quantizer advises through the root logger, warnings, standard output and the runtime's logger; tests treat warnings as errors."""
    import onnxruntime

    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        previous = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        onnxruntime.set_default_logger_severity(4)
        try:
            yield
        finally:
            onnxruntime.set_default_logger_severity(2)  # onnxruntime's default, warning
            logging.disable(previous)


def random_inputs(data: bytes, seed: int = 0) -> dict[str, Array]:
    """One random value for each input of a model: normal floats, whole-range bytes, indices 0 and 1. Free dimensions become 1."""
    rng = np.random.default_rng(seed)
    result = {}
    for value in OnnxRuntime(data, optimize=False).session.get_inputs():
        shape = tuple(size if isinstance(size, int) and size > 0 else 1 for size in value.shape)
        result[value.name] = _INPUTS[value.type](rng, shape)
    return result


def run(data: bytes, inputs: Mapping[str, Array], optimize: bool = False) -> list[Array]:
    """The outputs in onnxruntime's CPU provider, with all optimizations off (or on)."""
    return list(OnnxRuntime(data, optimize=optimize).run(inputs).values())


def operators(data: bytes) -> list[str]:
    """The operator types of a model's main graph and functions, sorted, with the domain where it is not ONNX's."""
    import onnx

    model = onnx.load_from_string(data)
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    return sorted({f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type for node in nodes})


@cache
def _float_model(kind: str, opset: int | None) -> bytes:
    network = {**NETWORKS, **DYNAMIC, **BLOCKS}[kind]
    if opset is not None:
        network = Network(network.nodes, network.inputs, network.weights, network.outputs, network.input_types, opset)
    data: bytes = build(kind, network).SerializeToString()
    return data


def _calibration(data: bytes) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    samples = iter([random_inputs(data, seed) for seed in range(100, 104)])

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Array] | None:
            return next(samples, None)

    return Reader()


@cache
def _quantized(kind: str, opset: int | None, options: tuple[tuple[str, Any], ...], extra: str) -> bytes:
    from onnxruntime import quantization

    data = _float_model(kind, opset)
    with _silence(), tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        source.write_bytes(data)
        quantization.quantize_static(source, target, _calibration(data), extra_options=json.loads(extra), **dict(options))
        return target.read_bytes()


def quantized(
    kind: str,
    quant_format: str = "QDQ",
    activation_type: str = "QInt8",
    weight_type: str = "QInt8",
    per_channel: bool = False,
    opset: int | None = None,
    extra: Mapping[str, Any] | None = None,
    reduce_range: bool = False,
    calibrate_method: str = "MinMax",
) -> bytes:
    """A network of NETWORKS or BLOCKS after quantize_static, calibrated with four random inputs.

    quant_format, the types and calibrate_method are names of onnxruntime.quantization's enumerations; extra is its extra_options; opset
    replaces the network's own.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType

    options = {
        "quant_format": QuantFormat[quant_format],
        "activation_type": QuantType[activation_type],
        "weight_type": QuantType[weight_type],
        "per_channel": per_channel,
        "reduce_range": reduce_range,
        "calibrate_method": CalibrationMethod[calibrate_method],
    }
    return _quantized(kind, opset, tuple(options.items()), json.dumps(extra or {}))


@cache
def dynamic(kind: str, weight_type: str = "QInt8", per_channel: bool = False) -> bytes:
    """A network of DYNAMIC after quantize_dynamic."""
    from onnxruntime import quantization

    with _silence(), tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        source.write_bytes(_float_model(kind, None))
        quantization.quantize_dynamic(source, target, per_channel=per_channel, weight_type=quantization.QuantType[weight_type])
        return target.read_bytes()


@cache
def weight_only(quant_format: str = "QOperator", symmetric: bool = True, bits: int = 4) -> bytes:
    """One MatMul (32, 8) whose weights are quantized in blocks of 16: MatMulNBits as QOperator, a blocked DequantizeLinear as QDQ."""
    import onnx

    with _silence():
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        network = Network("y = MatMul (x, w)", {"x": (4, 32)}, {"w": (32, 8)}, opset=21)
        config = DefaultWeightOnlyQuantConfig(16, symmetric, bits=bits, quant_format=QuantFormat[quant_format])
        quantizer = MatMulNBitsQuantizer(build("weight_only", network), algo_config=config)
        quantizer.process()
        model: onnx.ModelProto = quantizer.model.model
        return bytes(model.SerializeToString())


def _static_cases() -> dict[str, Case]:
    """Every network in S8S8, U8S8 and U8U8, QDQ and QOperator; per channel, int8, where an operator has weights for it."""
    cases: dict[str, Case] = {}
    for kind, network in NETWORKS.items():
        # onnxruntime refuses the QLinearMatMul with a vector of scales that its own quantizer makes for a vector of weights.
        channels = kind != "matmul_vector" and any(word in network.nodes for word in ("Conv", "Gemm", "MatMul (x, w", "Normalization"))
        for types in ("S8S8", "U8S8", "U8U8"):
            for per_channel in (False, True)[: 1 + (channels and types != "U8U8")]:
                for form in ("QDQ", "QOperator"):
                    name = f"{kind}-{types}{'-pc' * per_channel}-{form.lower()}"
                    activation, weight = _ACTIVATIONS[types[:2]], _WEIGHTS[types[2:]]
                    cases[name] = partial(quantized, kind, form, activation, weight, per_channel)
    return cases


_WIDE_KINDS = (
    "conv conv_depthwise conv_transpose gemm matmul matmul_bias add mul relu clip leaky_relu sigmoid softmax max_pool average_pool "
    "global_average_pool reshape transpose concat split slice gather where resize_nearest layer_normalization mobile encoder"
).split()
_WEIGHT_KINDS = "conv conv_depthwise conv_transpose gemm matmul matmul_bias gather_table mobile encoder".split()


def _wide_cases() -> dict[str, Case]:
    """16 bit activations (opset 21, and in com.microsoft's domain below it), 16 and 4 bit weights; QDQ only, as the quantizer demands."""
    cases: dict[str, Case] = {}
    for kind in _WIDE_KINDS:
        for types in ("U16S8", "S16S8", "U16U8"):
            activation, weight = types[:3], types[3:]
            cases[f"{kind}-{types}-qdq"] = partial(quantized, kind, "QDQ", _ACTIVATIONS[activation], _WEIGHTS[weight], False, 21)
    for kind in _WEIGHT_KINDS:
        for types in ("S8S4", "U8U4", "U16S4", "U16S16"):
            activation, weight = (types[:3], types[3:]) if types[1] == "1" else (types[:2], types[2:])
            for per_channel in (False, True):
                name = f"{kind}-{types}{'-pc' * per_channel}-qdq"
                cases[name] = partial(quantized, kind, "QDQ", _ACTIVATIONS[activation], _WEIGHTS[weight], per_channel, 21)
    for kind in ("conv", "mobile", "encoder"):
        extra = {"UseQDQContribOps": True}
        cases[f"{kind}-U16S8-contrib-qdq"] = partial(quantized, kind, "QDQ", "QUInt16", "QInt8", False, 17, extra)
        cases[f"{kind}-S8S8-contrib-qdq"] = partial(quantized, kind, "QDQ", "QInt8", "QInt8", True, 17, extra)
    for weight in ("S8", "S4", "U4"):
        cases[f"matmul-S8{weight}-blocks-qdq"] = partial(quantized, "matmul", "QDQ", "QInt8", _WEIGHTS[weight], False, 21, {"BlockSize": 8})
    for kind in ("conv", "gemm", "matmul"):
        float8 = "QFLOAT8E4M3FN"
        cases[f"{kind}-float8-qdq"] = partial(quantized, kind, "QDQ", float8, float8, False, 19, None, False, "Distribution")
    return cases


_EXTRA: dict[str, dict[str, Any]] = {
    "symmetric": {"ActivationSymmetric": True},
    "weights_asymmetric": {"WeightSymmetric": False},
    "float_weights": {"AddQDQPairToWeight": True},
    "dedicated": {"DedicatedQDQPair": True},
    "keep_activations": {"QDQKeepRemovableActivations": True},
    "float_bias": {"QuantizeBias": False},
    "forced": {"ForceQuantizeNoInputCheck": True},
}


def _option_cases() -> dict[str, Case]:
    """The quantizer's options that change how a model is written, and its operator-set versions."""
    cases: dict[str, Case] = {}
    for option, extra in _EXTRA.items():
        for kind in ("mobile", "encoder"):
            cases[f"{kind}-{option}-qdq"] = partial(quantized, kind, "QDQ", "QInt8", "QInt8", True, None, extra)
    for option in ("symmetric", "weights_asymmetric", "forced"):
        for kind in ("mobile", "encoder"):
            cases[f"{kind}-{option}-qoperator"] = partial(quantized, kind, "QOperator", "QUInt8", "QUInt8", False, None, _EXTRA[option])
    for kind in ("conv", "gemm", "mobile"):
        cases[f"{kind}-reduced-qdq"] = partial(quantized, kind, "QDQ", "QUInt8", "QInt8", True, None, None, True)
    for opset in (13, 15, 19, 21, 23):
        cases[f"conv_depthwise-opset{opset}-qdq"] = partial(quantized, "conv_depthwise", "QDQ", "QInt8", "QInt8", True, opset)
        cases[f"conv_depthwise-opset{opset}-qoperator"] = partial(quantized, "conv_depthwise", "QOperator", "QUInt8", "QInt8", True, opset)
    return cases


def _dynamic_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for kind in DYNAMIC:
        for weight in ("S8", "U8"):
            cases[f"{kind}-dynamic-{weight}"] = partial(dynamic, kind, _WEIGHTS[weight])
        cases[f"{kind}-dynamic-S8-pc"] = partial(dynamic, kind, "QInt8", True)
    for form in ("QOperator", "QDQ"):
        for symmetric in (True, False):
            cases[f"matmul-int4-blocks-{'symmetric' if symmetric else 'affine'}-{form.lower()}"] = partial(weight_only, form, symmetric)
    cases["matmul-int8-blocks-qoperator"] = partial(weight_only, "QOperator", False, 8)
    return cases


STATIC = _static_cases()
WIDE = _wide_cases()
OPTIONS = _option_cases()
DYNAMIC_CASES = _dynamic_cases()

#: Every case of this module.
CASES: dict[str, Case] = {**STATIC, **WIDE, **OPTIONS, **DYNAMIC_CASES}


def path_of(name: str, folder: Path) -> Path:
    """A file of fixtures/onnx, or a case of this module, written to `folder`."""
    path = Path(__file__).parent.parent / "fixtures" / "onnx" / f"{name}.onnx"
    if not path.exists():
        path = folder / f"{name}.onnx"
        path.write_bytes(CASES[name]())
    return path
