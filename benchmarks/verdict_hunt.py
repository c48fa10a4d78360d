"""Random models converted nine ways each, and the verdicts of `qconvert check` next to what the real runtimes give end to end.

Nothing of the check takes part in the judgement: source and result run whole in LiteRT, onnxruntime and PyTorch on random, constant and
saturating inputs, and their outputs are compared as float values. A wrong pass is a result that passes while an output has NaN or an
infinity where the source has none, another shape, or is further off than FAR; a wrong fail is one called not equal while all outputs
are equal to last bits of float32. Both kinds are listed to be looked at: a fault that none of these inputs reaches is rightly not equal.

    TENSORFLOW/bin/python benchmarks/verdict_hunt.py keras build/hunt --count 100     in an environment with tensorflow-cpu alone
    PYTHONPATH=tests python benchmarks/verdict_hunt.py onnx build/hunt --count 100    torch networks that onnxruntime's quantizer quantized
    PYTHONPATH=tests python benchmarks/verdict_hunt.py strange build/hunt --count 100 files from tests/strange_models.py
    PYTHONPATH=tests python benchmarks/verdict_hunt.py undefined build/hunt           float operators that give NaN and infinities
    python benchmarks/verdict_hunt.py hunt build/hunt --seconds 3600                  goes on where it was ended
    python benchmarks/verdict_hunt.py told build/hunt                                 the counts
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
#: The modes of TensorFlow's converter, as fixtures/zoo/converter_modes.py has them.
MODES = ("int8", "int8_float_io", "int16x8", "dynamic", "float16")
#: A result that passes is listed if an output is off by more of its coarsest steps, and keeps less of its signal in dB.
FAR, SIGNAL = 3.0, 15.0
#: Indices of largest values may be those of neighbours in this share of an output, by a rounding before.
INDICES = 0.25
#: A share of an output's range that is some last bits of float32.
LAST_BITS = 2.0**-18
#: Seconds for a model in all its ways.
PATIENCE = 600
#: Way -> the conversions one after the other: the suffix of each result, and options.
TO_ONNX: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "x86": [("onnx", {"target": "ort-x86"})],
    "vnni": [("onnx", {"target": "ort-x86-vnni"})],
    "arm": [("onnx", {"target": "ort-arm"})],
    "generic": [("onnx", {"target": "generic"})],
    "qoperator": [("onnx", {"form": "qoperator"})],
    "torch": [("pt2", {})],
}
WAYS = {
    ".tflite": {**TO_ONNX, "modules": [("pt", {"form": "modules"})], "qgraph": [("qgraph", {}), ("tflite", {})],
                "back": [("onnx", {}), ("tflite", {})]},
    ".onnx": {**TO_ONNX, "tflite": [("tflite", {})], "qgraph": [("qgraph", {}), ("onnx", {"target": "generic"})],
              "back": [("tflite", {}), ("onnx", {})]},
}  # fmt: skip


def keras_models(folder: Path, count: int, seed: int) -> None:
    """Random Keras networks in the modes of TensorFlow's converter, one mode each."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    import tensorflow as tf

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fixtures" / "zoo"))
    from converter_modes import configure

    layers = tf.keras.layers
    for number in range(seed, seed + count):
        mode, rng = MODES[number % len(MODES)], random.Random(number)
        tf.keras.utils.set_random_seed(number)
        inputs = tf.keras.Input(rng.choice([(8, 8, 3), (7, 9, 4), (10, 6, 1), (12, 5), (16, 8), (20,)]), batch_size=1)
        x, earlier = inputs, [inputs]
        for _ in range(rng.randint(2, 8)):
            try:
                y = _keras_layer(layers, tf, rng, x, earlier)
            except ValueError:
                continue
            if int(np.prod(y.shape)) in range(1, 20000):
                x = y
                earlier.append(x)
        heads: list[Callable[[Any], Any]] = [
            lambda x: x, layers.Flatten(), lambda x: layers.Dense(5)(layers.Flatten()(x)),
            lambda x: layers.Softmax()(layers.Dense(4)(layers.Flatten()(x))),
        ]  # fmt: skip
        model = tf.keras.Model(inputs, rng.choice(heads)(x))
        values = np.random.default_rng(number)
        for variable in model.weights:
            noise = values.normal(0, 0.2, variable.shape)
            variable.assign(np.abs(variable + noise) + 0.05 if "variance" in variable.path else variable + noise)

        def data(shape: tuple[int, ...] = inputs.shape, values: np.random.Generator = values) -> Iterator[list[Array]]:
            for _ in range(12):
                yield [values.normal(0, 1, shape).astype(np.float32)]

        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        configure(converter, mode, data)
        try:
            (folder / f"keras_{number}_{mode}.tflite").write_bytes(converter.convert())
        except Exception as error:  # of TensorFlow's converter
            print(number, mode, str(error).splitlines()[0][:150])


def _keras_layer(layers: Any, tf: Any, rng: random.Random, x: Any, earlier: Sequence[Any]) -> Any:
    """Another layer on x; ValueError if it does not fit."""
    same = [each for each in earlier if each.shape == x.shape and each is not x]
    curves = ["relu", "relu6", "sigmoid", "tanh", "elu", "swish", "gelu", "softplus", "leaky_relu", "hard_swish", "selu"]
    anywhere = [
        lambda: layers.Activation(rng.choice(curves))(x), lambda: layers.LayerNormalization(epsilon=rng.choice([0.0, 1e-3]))(x),
        lambda: layers.BatchNormalization()(x), lambda: layers.Dense(rng.randint(1, 9), rng.choice([None, "relu"]))(x),
        lambda: layers.Softmax()(x), lambda: rng.choice([layers.Add, layers.Multiply, layers.Subtract, layers.Maximum, layers.Minimum])()
        ([x, rng.choice(same)]) if same else layers.Concatenate()([x, x]),
    ]  # fmt: skip
    padding, stride, width = rng.choice(["same", "valid"]), rng.choice([1, 1, 2]), rng.randint(1, 3)
    curve = rng.choice([None, "relu", "relu6", "tanh"])
    if len(x.shape) == 4:
        own = [
            lambda: layers.Conv2D(rng.randint(1, 12), width, stride, padding, activation=curve, use_bias=rng.random() < 0.7)(x),
            lambda: layers.Conv2D(rng.randint(1, 6), 2, padding="same", dilation_rate=2, activation=curve)(x),
            lambda: layers.DepthwiseConv2D(width, 1, padding, rng.choice([1, 2]), activation=curve)(x),
            lambda: layers.Conv2DTranspose(rng.randint(1, 6), width, 2, padding)(x),
            lambda: rng.choice([layers.MaxPooling2D, layers.AveragePooling2D])(2, stride, padding)(x),
            lambda: layers.GlobalAveragePooling2D(keepdims=True)(x), lambda: layers.ZeroPadding2D(((1, 0), (2, 1)))(x),
            lambda: layers.UpSampling2D(2, interpolation=rng.choice(["nearest", "bilinear"]))(x),
            lambda: layers.PReLU(shared_axes=[1, 2])(x),
            lambda: layers.Cropping2D(1)(x), lambda: layers.Permute((2, 1, 3))(x), lambda: layers.Reshape((-1, x.shape[-1]))(x),
        ]  # fmt: skip
    elif len(x.shape) == 3:
        own = [
            lambda: layers.Conv1D(rng.randint(1, 8), width, stride, padding, activation=curve)(x), lambda: layers.MaxPooling1D(2)(x),
            lambda: layers.MultiHeadAttention(2, 4)(x, x), lambda: layers.GlobalMaxPooling1D()(x), lambda: layers.Permute((2, 1))(x),
            lambda: layers.LSTM(rng.randint(2, 6), return_sequences=rng.random() < 0.5, unroll=True)(x),
        ]  # fmt: skip
    else:
        own = [lambda: layers.Dense(rng.randint(1, 16), curve)(x), lambda: layers.Reshape((1, -1, 1))(x)]
    return rng.choice(own * 2 + anywhere if len(own) > 3 else own + anywhere)()


def onnx_models(folder: Path, count: int, seed: int) -> None:
    """Random torch networks that onnxruntime's quantizer quantized, in its forms and types."""
    import onnx
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from random_quantized import random_network

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, shape: tuple[int, ...], seed: int) -> None:
            self.rest = iter([{"x": np.random.default_rng(seed + n).standard_normal(shape).astype(np.float32)} for n in range(6)])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.rest, None)

    for number in range(seed, seed + count):
        rng, network = random.Random(number), None
        plain, path = folder / "plain.part", folder / f"onnx_{number}.onnx"
        network, shape = random_network(number)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    network, (torch.randn(shape),), str(plain), input_names=["x"], opset_version=rng.choice([13, 15, 17]), dynamo=False
                )
            quant_pre_process(str(plain), str(plain), skip_symbolic_shape=True)
            types = [(QuantType.QUInt8, QuantType.QInt8), (QuantType.QInt8, QuantType.QInt8), (QuantType.QUInt8, QuantType.QUInt8)]
            activation, weight = rng.choice(types)
            per_channel, reduce_range = rng.random() < 0.5, rng.random() < 0.2
            if rng.random() < 0.15:
                quantize_dynamic(str(plain), str(path), weight_type=weight, per_channel=per_channel, reduce_range=reduce_range)
            else:
                symmetric = {
                    "ActivationSymmetric": rng.random() < 0.3 and activation == QuantType.QInt8,
                    "WeightSymmetric": rng.random() < 0.8,
                }
                form = rng.choice([QuantFormat.QDQ, QuantFormat.QDQ, QuantFormat.QOperator])
                quantize_static(str(plain), str(path), Reader(shape, number), form, per_channel=per_channel, reduce_range=reduce_range,
                                activation_type=activation, weight_type=weight, extra_options=symmetric)  # fmt: skip
            onnx.checker.check_model(str(path))
        except Exception as error:  # of the exporter or the quantizer
            print(number, type(error).__name__, str(error).splitlines()[:1])
            path.unlink(missing_ok=True)
    (folder / "plain.part").unlink(missing_ok=True)


def strange_files(folder: Path, count: int, seed: int) -> None:
    """Strange QDQ files: tests/strange_models.py."""
    from strange_models import strange_model

    for number in range(seed, seed + count):
        (folder / f"strange_{number}.onnx").write_bytes(strange_model(random.Random(number), 2).SerializeToString())


def undefined_models(folder: Path, count: int, seed: int) -> None:
    """Chains of float operators that give NaN and infinities (0/0, roots and logarithms of what is not positive), between quantizations or
    not."""
    from onnx import TensorProto, helper, numpy_helper

    def constant(name: str, value: Any, dtype: Any = np.float32) -> Any:
        return numpy_helper.from_array(np.asarray(value, dtype), name)

    undefined = ["normed", "Sqrt", "Log", "Reciprocal", "own ratio", "Pow", "batch", "ratio"]
    plain = ["Relu", "Clip", "Max", "Min", "Sigmoid", "Softmax", "Abs", "ArgMax", "IsNaN", "Greater", "Where", "ReduceMax", "Tanh", "pair",
             "MatMul", "Sign", "LeakyRelu", "Add", "Equal", "TopK", "MaxPool", "Identity"]  # fmt: skip
    for number in range(seed, seed + count):
        rng, nodes = random.Random(number), list[Any]()
        constants = [
            constant("s", rng.choice([0.05, 0.1])), constant("z", rng.choice([0, 3, -20]), np.int8), constant("one", np.ones(4)),
            constant("none", np.zeros(4)), constant("half", 0.5), constant("c", 0.3), constant("k", [1], np.int64),
            constant("w", np.random.default_rng(number).standard_normal((4, 4))), constant("low", -0.5), constant("axis", [-1], np.int64),
        ]  # fmt: skip

        def add(op: str, inputs: Sequence[str], outputs: int = 1, nodes: list[Any] = nodes, **attributes: Any) -> str:
            names = [f"t{len(nodes)}_{index}" for index in range(outputs)]
            nodes.append(helper.make_node(op, list(inputs), names, **attributes))
            return names[0]

        def pair(x: str) -> str:
            return add("DequantizeLinear", [add("QuantizeLinear", [x, "s", "z"]), "s", "z"])

        x = pair("x")
        for step in [rng.choice(undefined), *rng.choices(plain + undefined, k=rng.randint(0, 2))]:
            if step == "normed":
                x = add("LayerNormalization", [x, "one", "none"], epsilon=0.0)
            elif step == "own ratio":
                x = add("Div", [x, x])
            elif step == "ratio":
                x = add("Div", [x, "none"])
            elif step == "batch":
                x = add("BatchNormalization", [x, "one", "none", "none", "none"], epsilon=0.0)
            elif step == "pair":
                x = pair(x)
            elif step in ("Pow", "Max", "Min", "Add"):
                x = add(step, [x, "half"])
            elif step == "Clip":
                x = add("Clip", [x, "low", "half"])
            elif step == "MatMul":
                x = add("MatMul", [x, "w"])
            elif step == "Where":
                x = add("Where", [add("Greater", [x, "c"]), x, "c"])
            elif step in ("IsNaN", "Greater", "Equal"):
                x = add("Cast", [add(step, [x] if step == "IsNaN" else [x, "c" if step == "Greater" else x])], to=TensorProto.FLOAT)
            elif step == "ArgMax":
                x = add("Mul", [add("Cast", [add("ArgMax", [x], axis=1, keepdims=1)], to=TensorProto.FLOAT), "one"])
            elif step == "ReduceMax":
                x = add("Mul", [add("ReduceMax", [x], axes=[1]), "one"])
            elif step == "TopK":
                x = add("Mul", [add("TopK", [x, "k"], 2, axis=1), "one"])
            elif step == "MaxPool":
                x = add("MaxPool", [x], kernel_shape=[2, 2], pads=[0, 0, 1, 1])
            else:
                x = add(step, [x])
        x = pair(x) if rng.random() < 0.4 else x
        nodes.append(helper.make_node("Identity", [x], ["y"]))
        shape = [1, 4, 4, 4]
        graph = helper.make_graph(
            nodes, "undefined", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (folder / f"undefined_{number}.onnx").write_bytes(model.SerializeToString())


class Ran:
    """A model in its real runtime, with the quantizations and layouts of its inputs and outputs as the reader finds them."""

    def __init__(self, path: Path) -> None:
        from qconvert import load

        self.graph = load(path)
        data = path.read_bytes()
        if path.suffix == ".tflite":
            from qconvert.runtimes.litert import LiteRT

            self.run = LiteRT(data).run_in_order
        elif path.suffix == ".onnx":
            import onnxruntime

            session = None
            for precise in ("1", "0"):  # the kernels' numbers on CPUs with VNNI; some files do not load so
                options = onnxruntime.SessionOptions()
                options.log_severity_level, options.intra_op_num_threads = 4, 1
                options.add_session_config_entry("session.x64quantprecision", precise)
                try:
                    session = onnxruntime.InferenceSession(data, options)
                    break
                except Exception:
                    if precise == "0":
                        raise
            names = [item.name for item in session.get_inputs()]
            self.run = lambda values: session.run(None, dict(zip(names, values, strict=True)))
        else:
            import torch

            torch.backends.quantized.engine = "qnnpack"  # fbgemm saturates on CPUs without VNNI
            exported = path.suffix == ".pt2"
            module = torch.export.load(path).module() if exported else torch.jit.load(io.BytesIO(data))

            def run(values: list[Array]) -> list[Array]:
                with torch.no_grad():
                    found = module(*[torch.from_numpy(np.array(value)) for value in values])
                each = found if isinstance(found, (tuple, list)) else [found]
                return [(item.int_repr() if item.is_quantized else item).numpy() for item in each]

            self.run = run


def real(values: Array, tensor: Any) -> Array:
    from qconvert.arithmetic import dequantize

    stored = tensor.quantization is not None and values.dtype.kind in "iu"
    return np.asarray(dequantize(values, tensor.quantization) if stored else values, np.float64)


def stored(values: Array, tensor: Any, dtype: str) -> Array:
    """Integers with a quantization of one side, as the other takes them."""
    from qconvert.arithmetic import quantize

    if tensor.quantization is not None and values.dtype.kind == "f":
        return quantize(values, tensor.quantization, tensor.dtype)
    return values.astype(dtype) if values.dtype.name != dtype else values


def laid(values: Array, shape: Sequence[Any] | None, turned: bool, to: tuple[int, ...]) -> Array:
    """Images with channels first or last, as the other side has them."""
    if values.ndim != 4 or shape is None or len(shape) != 4:
        return values
    other = values.transpose(to)
    fits = [all(not isinstance(size, int) or size == own for size, own in zip(shape, each.shape, strict=True)) for each in (values, other)]
    return other if fits[1] and (turned or not fits[0]) else values


def inputs_of(graph: Any) -> Iterator[list[Array]]:
    """Random, constant and saturating inputs, twelve in all."""
    rng = np.random.default_rng(5)
    for kind in ("random",) * 5 + ("wide", "small", "none", "same", "low", "high", "mixed"):
        found = []
        for name in graph.inputs:
            tensor = graph[name]
            sizes = [
                size if isinstance(size, int) and size > 0 else int("".join(filter(str.isdigit, str(size))) or 1)
                for size in tensor.shape or ()
            ]
            dtype = np.dtype(tensor.dtype)
            if dtype.kind == "f":
                normal = rng.standard_normal(sizes)
                values = {"random": normal, "wide": 8 * normal, "small": normal / 50, "none": 0 * normal, "same": 0 * normal + 0.7,
                          "low": 0 * normal - 300, "high": 0 * normal + 300, "mixed": 300 * np.sign(normal)}[kind]  # fmt: skip
            elif dtype.kind == "b":
                values = rng.integers(0, 2, sizes)
            else:
                ends = np.iinfo(dtype) if tensor.quantization is not None else np.iinfo(np.int8)
                low, high = max(ends.min, np.iinfo(dtype).min), ends.max
                zero = tensor.quantization.point if tensor.quantization is not None else 0
                values = {"none": np.full(sizes, zero), "same": np.full(sizes, low + (high - low) // 3), "low": np.full(sizes, low),
                          "high": np.full(sizes, high), "mixed": rng.choice([low, high], sizes)}.get(kind)  # fmt: skip
                values = rng.integers(low, high, sizes, endpoint=True) if values is None else values
            found.append(np.asarray(values).astype(dtype))
        yield found


def is_undefined(graph: Any, values: Sequence[Array]) -> bool:
    """Whether a tensor inside is NaN for some input, as the root of what is negative."""
    from qconvert.evaluate import evaluate

    names = tuple(name for name, tensor in graph.tensors.items() if not tensor.is_constant and "float" in tensor.dtype)
    found = evaluate(graph.evolve(outputs=names), dict(zip(graph.inputs, values, strict=True)))
    return any(np.isnan(value).any() for value in found.values())


def distance(before: Ran, after: Ran, defined: bool = False) -> dict[str, Any]:
    """How far the outputs of two models are apart, over all inputs: the worst of each measure; or over those alone for which the source
    computes no NaN."""
    from qconvert.graph.metadata import find_layout_changes

    turned = find_layout_changes(before.graph.metadata, after.graph.metadata)
    worst: dict[str, Any] = {"equal": True, "last_bits": True, "undefined": "", "sqnr": 999.0, "steps": 0.0}
    kinds = 0
    scales = [[float(np.max(t.quantization.scale)) for t in ran.graph.tensors.values() if not t.is_constant and t.quantization is not None]
              for ran in (before, after)]  # fmt: skip
    step = max([*scales[0], *scales[1]], default=0.0)
    for number, values in enumerate(inputs_of(before.graph)):
        if defined and is_undefined(before.graph, values):
            continue
        given = []
        for name, other, value in zip(before.graph.inputs, after.graph.inputs, values, strict=True):
            own, there = before.graph[name], after.graph[other]
            as_there = value if own.quantization == there.quantization or value.dtype.kind == "f" else real(value, own)
            given.append(laid(stored(as_there, there, there.dtype), there.shape, name in turned, (0, 3, 1, 2)))
        try:
            wanted = before.run(values)
        except Exception:  # an input that the source refuses
            continue
        kinds += 1
        for index, (a, b) in enumerate(zip(wanted, after.run(given), strict=True)):
            one, other_one = before.graph[before.graph.outputs[index]], after.graph[after.graph.outputs[index]]
            b = laid(b, a.shape, one.name in turned, (0, 2, 3, 1))
            if a.shape != b.shape and a.size != b.size:
                worst.update(equal=False, last_bits=False, undefined=f"shape {a.shape} {b.shape}")
                continue
            x, y = real(a, one), real(b, other_one).reshape(a.shape)
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            if same.all():
                continue
            worst["equal"] = False
            if a.dtype.kind in "iub" and one.quantization is None and (~same).mean() < INDICES:
                worst["last_bits"] = False
                continue
            if not np.array_equal(np.isnan(x), np.isnan(y)):
                worst["undefined"] = f"NaN in {int((np.isnan(x) ^ np.isnan(y)).sum())} of {x.size}, input {number}"
            elif not np.array_equal(np.isinf(x), np.isinf(y)) or (np.isinf(x) & ~same).any():
                worst["undefined"] = (
                    worst["undefined"] or f"infinite in {int((np.isinf(x) ^ np.isinf(y)).sum())} of {x.size}, input {number}"
                )
            finite = np.isfinite(x) & np.isfinite(y)
            off, size = np.abs(x - y)[finite], np.abs(x[finite]).max(initial=0.0)
            largest = float(off.max(initial=0.0))
            if largest > LAST_BITS * size or a.dtype.kind in "iub" or worst["undefined"]:
                worst["last_bits"] = False
            scale = float(np.max(one.quantization.scale)) if one.quantization is not None else step
            steps = largest / scale if scale else 0.0
            noise = float(np.mean(off**2)) if off.size else 0.0
            sqnr = float(10 * np.log10(max(float(np.mean(x[finite] ** 2)), 1e-30) / noise)) if noise else 999.0
            worst["steps"] = max(worst["steps"], steps)
            if steps > FAR or not scale:
                worst["sqnr"] = min(worst["sqnr"], sqnr)
    worst["runs"] = kinds
    return worst


def is_far(found: Mapping[str, Any]) -> bool:
    return bool(found["undefined"]) or (found["sqnr"] < SIGNAL and not found["last_bits"])


def judge(source: Path, way: str, folder: Path) -> dict[str, Any]:
    """One pair: the verdict, and the distance."""
    from qconvert import check, convert
    from qconvert.errors import QConvertError

    result = source
    try:
        before = Ran(source)
        before.run(next(inputs_of(before.graph)))
    except Exception as error:
        return {"end": "source not run", "words": str(error)[:200]}
    try:
        for number, (suffix, options) in enumerate(WAYS[source.suffix][way]):
            given, result = result, folder / f"{number}_{way}.{suffix}"
            convert(given, result, force=True, **options)
    except QConvertError as error:
        return {"end": "refused", "words": f"{type(error).__name__}: {str(error)[:300]}"}
    try:
        report = check(source, result)
        found: dict[str, Any] = {"verdict": report.verdict, "words": [*report.problems, *report.unjudged][:3]}
    except Exception as error:
        found = {
            "verdict": f"{type(error).__name__}",
            "words": [str(error)[:400] if isinstance(error, QConvertError) else traceback.format_exc()[-1200:]],
        }
    try:
        after = Ran(result)
        found.update(distance(before, after))
        if found["verdict"] == "passed" and is_far(found):
            inside = distance(before, after, True)
            if inside["runs"] and not is_far(inside):
                return {**found, "end": "far by NaN inside alone"}
    except Exception as error:
        return {**found, "end": "result not run", "error": f"{type(error).__name__}: {str(error)[:300]}"}
    far = is_far(found)
    passed, failed = found["verdict"] in ("passed", "as declared"), found["verdict"] == "not equal"
    end = "wrong pass" if passed and far else "wrong fail" if failed and (found["equal"] or found["last_bits"]) else "right"
    return {**found, "end": end}


def hunt(folder: Path, seconds: float, match: str) -> None:
    """Judges all pairs that were not judged yet, each model in a process of its own, and keeps them in pairs.jsonl."""
    kept, work = folder / "pairs.jsonl", folder / "work"
    work.mkdir(exist_ok=True)
    done = {(item["model"], item["way"]) for item in _pairs(folder)}
    import onnxruntime
    import torch  # noqa: F401  once for all children

    from qconvert import check  # noqa: F401

    assert onnxruntime.__version__
    end = time.time() + seconds
    sources = sorted((file for file in folder.iterdir() if file.suffix in WAYS and match in file.name), key=_order)
    for source in sources:
        for way in WAYS[source.suffix]:
            if (source.name, way) in done or time.time() > end:
                continue
            child = os.fork()
            if not child:
                signal.alarm(PATIENCE)
                began = time.time()
                found = {"model": source.name, "way": way, **judge(source, way, work), "seconds": round(time.time() - began, 1)}
                with kept.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            if status:
                with kept.open("a") as file:
                    file.write(json.dumps({"model": source.name, "way": way, "end": "process ended", "words": str(status)}) + "\n")


def _order(file: Path) -> tuple[int, str]:
    """One model of each kind after the other."""
    return int("".join(filter(str.isdigit, file.stem.split("_")[1]))), file.name


def _pairs(folder: Path) -> list[dict[str, Any]]:
    file = folder / "pairs.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def told(folder: Path) -> None:
    """Prints the counts, and all that went wrong."""
    pairs = _pairs(folder)
    counts: dict[str, Counter[str]] = {}
    for item in pairs:
        kind = item["model"].split("_")[0]
        end = item["end"] if item["end"] != "right" else item["verdict"]
        for key in (f"{kind} -> {item['way']}", kind, "all"):
            counts.setdefault(key, Counter())[end] += 1
    for key, found in sorted(counts.items()):
        print(f"{key}: {dict(found.most_common())}")
    print(
        {
            kind: len({item["model"] for item in pairs if item["model"].startswith(kind)})
            for kind in ("keras", "onnx", "strange", "undefined")
        }
    )
    for item in pairs:
        wrong = item["end"] in ("wrong pass", "wrong fail", "process ended", "result not run")
        if wrong or item.get("verdict", "") not in ("", "passed", "as declared", "inconclusive"):
            print(json.dumps(item)[:700])


def main() -> None:
    makers = {"keras": keras_models, "onnx": onnx_models, "strange": strange_files, "undefined": undefined_models}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*makers, "hunt", "told"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--match", default="", help="only models whose name holds this text")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.what in makers:
        makers[arguments.what](arguments.folder, arguments.count, arguments.seed)
    elif arguments.what == "hunt":
        hunt(arguments.folder, arguments.seconds, arguments.match)
    else:
        told(arguments.folder)


if __name__ == "__main__":
    main()
