"""Small float ONNX networks, one or more for each operator type that onnxruntime.quantization knows (its registry.py, 1.31).

A network is its nodes in the text form of onnx.parser, the shapes of its inputs, and the shapes (or values) of its weights. Data movement
and pooling follow a Conv or a MatMul because the quantizer touches them only where their input is quantized already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """nodes in onnx.parser's text; a weight given as a shape is drawn from a normal distribution, seeded by the network's name."""

    nodes: str
    inputs: Mapping[str, Shape]
    weights: Mapping[str, Shape | Array] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=lambda: {"y": "float"})
    input_types: Mapping[str, str] = field(default_factory=dict)
    opset: int = 17


_IMAGE = {"x": (1, 3, 8, 8)}
_CONV = "c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w, b) "
_CONV_WEIGHTS: dict[str, Shape | Array] = {"w": (8, 3, 3, 3), "b": (8,)}


def _ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


def _after_conv(nodes: str, weights: Mapping[str, Shape | Array] | None = None, **more: Any) -> Network:
    """The nodes read c, the output (1, 8, 8, 8) of a Conv."""
    return Network(_CONV + nodes, _IMAGE, _CONV_WEIGHTS | dict(weights or {}), **more)


def _vector(nodes: str, weights: Mapping[str, Shape | Array] | None = None, **more: Any) -> Network:
    """The nodes read x (4, 16)."""
    return Network(nodes, {"x": (4, 16)}, weights or {}, **more)


_F32 = np.float32

_CONVOLUTIONS = {
    "conv": Network("y = Conv <kernel_shape=[3,3], strides=[2,2], pads=[0,1,1,0]> (x, w, b)", _IMAGE, _CONV_WEIGHTS),
    "conv_no_bias": Network("y = Conv <kernel_shape=[3,3], dilations=[2,2]> (x, w)", _IMAGE, {"w": (8, 3, 3, 3)}),
    "conv_auto_pad": Network('y = Conv <kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER"> (x, w, b)', _IMAGE, _CONV_WEIGHTS),
    "conv_1d": Network("y = Conv <kernel_shape=[5], pads=[2,2]> (x, w, b)", {"x": (1, 4, 20)}, {"w": (6, 4, 5), "b": (6,)}),
    "conv_3d": Network("y = Conv <kernel_shape=[2,2,2]> (x, w, b)", {"x": (1, 2, 4, 4, 4)}, {"w": (4, 2, 2, 2, 2), "b": (4,)}),
    "conv_depthwise": _after_conv("y = Conv <kernel_shape=[3,3], pads=[1,1,1,1], group=8> (c, d, e)", {"d": (8, 1, 3, 3), "e": (8,)}),
    "conv_grouped": _after_conv("y = Conv <kernel_shape=[3,3], group=2> (c, d, e)", {"d": (6, 4, 3, 3), "e": (6,)}),
    "conv_transpose": _after_conv("y = ConvTranspose <kernel_shape=[3,3], strides=[2,2]> (c, d, e)", {"d": (8, 4, 3, 3), "e": (4,)}),
}
_MATRICES = {
    "gemm": _vector("y = Gemm <transB=1> (x, w, b)", {"w": (10, 16), "b": (10,)}),
    "gemm_plain": _vector("y = Gemm <transB=0> (x, w, b)", {"w": (16, 10), "b": (10,)}),
    "gemm_no_bias": _vector("y = Gemm <transB=1> (x, w)", {"w": (10, 16)}),
    "gemm_alpha": _vector("y = Gemm <transB=1, alpha=0.5, beta=2.0> (x, w, b)", {"w": (10, 16), "b": (10,)}),
    "matmul": _vector("y = MatMul (x, w)", {"w": (16, 10)}),
    "matmul_bias": _vector("m = MatMul (x, w) y = Add (m, b)", {"w": (16, 10), "b": (10,)}),
    "matmul_activations": Network("y = MatMul (x, z)", {"x": (2, 4, 16), "z": (2, 16, 5)}),
    "matmul_vector": _vector("y = MatMul (x, w)", {"w": (16,)}),
}
_ELEMENTWISE = {
    "add": Network("y = Add (x, z)", {"x": (1, 8, 6), "z": (1, 8, 6)}),
    "add_broadcast": Network("y = Add (x, w)", {"x": (1, 8, 6, 6)}, {"w": (1, 8, 1, 1)}),
    "mul": Network("y = Mul (x, z)", {"x": (1, 8, 6), "z": (1, 1, 6)}),
    "mul_constant": Network("y = Mul (x, w)", {"x": (1, 8, 6)}, {"w": np.asarray(0.7, _F32)}),
    "relu": _after_conv("y = Relu (c)"),
    "relu_alone": _vector("y = Relu (x)"),
    "clip": _after_conv("y = Clip (c, lo, hi)", {"lo": np.asarray(0, _F32), "hi": np.asarray(6, _F32)}),
    "clip_signed": _after_conv("y = Clip (c, lo, hi)", {"lo": np.asarray(-1, _F32), "hi": np.asarray(1, _F32)}),
    "leaky_relu": _after_conv("y = LeakyRelu <alpha=0.1> (c)"),
    "sigmoid": _after_conv("y = Sigmoid (c)"),
    "softmax": _vector("m = MatMul (x, w) y = Softmax (m)", {"w": (16, 10)}),
    "softmax_axis": _after_conv("y = Softmax <axis=1> (c)"),
    "where": Network("y = Where (k, x, z)", {"k": (4, 6), "x": (4, 6), "z": (4, 6)}, input_types={"k": "bool"}),
    "hard_swish": _after_conv("h = HardSigmoid <alpha=0.16666667, beta=0.5> (c) y = Mul (c, h)"),
    "div_sub_tanh": _after_conv("s = Sub (c, w2) t = Tanh (s) y = Div (t, w3)", {"w2": (8, 1, 1), "w3": np.asarray(3, _F32)}),
    "cumsum": _vector("y = CumSum (x, i)", {"i": np.asarray(1, np.int64)}),
}
_POOLS = {
    "max_pool": _after_conv("y = MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (c)"),
    "average_pool": _after_conv("y = AveragePool <kernel_shape=[2,2], strides=[2,2]> (c)"),
    "average_pool_padded": _after_conv("y = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1> (c)"),
    "global_average_pool": _after_conv("y = GlobalAveragePool (c)"),
    "reduce_mean": _after_conv("y = ReduceMean <axes=[2,3], keepdims=0> (c)"),
    "arg_max": _after_conv("y = ArgMax <axis=1, keepdims=0> (c)", outputs={"y": "int64"}),
    "top_k": _vector("m = MatMul (x, w) y, i = TopK (m, k)", {"w": (16, 10), "k": _ints(3)}, outputs={"y": "float", "i": "int64"}),
}
_MOVEMENT = {
    "reshape": _after_conv("y = Reshape (c, s)", {"s": _ints(1, -1)}),
    "flatten": _after_conv("f = Flatten (c) y = Gemm <transB=1> (f, g)", {"g": (5, 512)}),
    "transpose": _after_conv("y = Transpose <perm=[0,2,3,1]> (c)"),
    "squeeze": _after_conv("y = Squeeze (c, a)", {"a": _ints(0)}),
    "unsqueeze": _after_conv("y = Unsqueeze (c, a)", {"a": _ints(0, 5)}),
    "concat": Network(_CONV + "y = Concat <axis=1> (c, z)", {"x": (1, 3, 8, 8), "z": (1, 2, 8, 8)}, _CONV_WEIGHTS),
    "split": _after_conv("y, z = Split <axis=1> (c, s)", {"s": _ints(3, 5)}, outputs={"y": "float", "z": "float"}),
    "slice": _after_conv("y = Slice (c, s, e, a, t)", {"s": _ints(1), "e": _ints(7), "a": _ints(2), "t": _ints(2)}),
    "pad": _after_conv("y = Pad (c, p, v)", {"p": _ints(0, 0, 1, 1, 0, 0, 1, 1), "v": np.asarray(0, _F32)}),
    "pad_value": _after_conv("y = Pad (c, p, v)", {"p": _ints(0, 0, 1, 1, 0, 0, 1, 1), "v": np.asarray(0.5, _F32)}),
    "pad_reflect": _after_conv('y = Pad <mode="reflect"> (c, p)', {"p": _ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    "gather": _after_conv("y = Gather <axis=1> (c, i)", {"i": _ints(2, 0, 5)}),
    "gather_table": Network("y = Gather (w, i)", {"i": (3, 4)}, {"w": (20, 8)}, input_types={"i": "int64"}),
    "gather_elements": _vector(
        "m = MatMul (x, w) y = GatherElements <axis=1> (m, i)", {"w": (16, 10), "i": _ints(*range(8)).reshape(4, 2)}
    ),
    "resize_nearest": _after_conv(
        'y = Resize <mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"> (c, , s)',
        {"s": np.asarray([1, 1, 2, 2], _F32)},
    ),
    "resize_linear": _after_conv('y = Resize <mode="linear"> (c, , s)', {"s": np.asarray([1, 1, 1.5, 2], _F32)}),
}
_POSITIVE = np.abs(np.random.default_rng(5).normal(size=8)).astype(_F32) + _F32(0.5)
_NORMS = {
    "batch_normalization": _after_conv("y = BatchNormalization (c, g, h, m, v)", {"g": (8,), "h": (8,), "m": (8,), "v": _POSITIVE}),
    "instance_normalization": _after_conv("y = InstanceNormalization (c, g, h)", {"g": (8,), "h": (8,)}),
    "layer_normalization": _vector("y = LayerNormalization (x, g, h)", {"g": (16,), "h": (16,)}),
}
_TRANSFORMER = {
    "attention": Network("y = com.microsoft.Attention <num_heads=2> (x, w, b)", {"x": (1, 4, 8)}, {"w": (8, 24), "b": (24,)}),
    "embed_layer_norm": Network(
        "y, m = com.microsoft.EmbedLayerNormalization (i, s, w, p, q, g, h)",
        {"i": (1, 4), "s": (1, 4)},
        {"w": (12, 8), "p": (4, 8), "q": (2, 8), "g": (8,), "h": (8,)},
        input_types={"i": "int32", "s": "int32"},
    ),
}
_WHOLE = {
    "mobile": Network(
        _CONV + "r = Clip (c, lo, hi) d = Conv <kernel_shape=[3,3], pads=[1,1,1,1], group=8> (r, w2, b2) e = Clip (d, lo, hi) "
        "f = Conv <kernel_shape=[1,1]> (e, w3, b3) a = Add (f, r) u = Concat <axis=1> (a, e) p = GlobalAveragePool (u) "
        "q = Flatten (p) l = Gemm <transB=1> (q, w4, b4) y = Softmax (l)",
        _IMAGE,
        _CONV_WEIGHTS
        | {"lo": np.asarray(0, _F32), "hi": np.asarray(6, _F32), "w2": (8, 1, 3, 3), "b2": (8,), "w3": (8, 8, 1, 1), "b3": (8,)}
        | {"w4": (5, 16), "b4": (5,)},
    ),
    "encoder": Network(
        "q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv) t = Transpose <perm=[0,2,1]> (k) s = MatMul (q, t) "
        "z = Mul (s, half) p = Softmax (z) a = MatMul (p, v) r = Add (a, x) n = LayerNormalization (r, g, h) f = MatMul (n, w1) "
        "i = Add (f, b1) j = Relu (i) o = MatMul (j, w2) y = Add (o, n)",
        {"x": (1, 6, 8)},
        dict.fromkeys(("wq", "wk", "wv", "w1", "w2"), (8, 8)) | {"half": np.asarray(0.5, _F32), "g": (8,), "h": (8,), "b1": (8,)},
    ),
}

#: Every network for quantize_static.
NETWORKS: dict[str, Network] = {
    **_CONVOLUTIONS,
    **_MATRICES,
    **_ELEMENTWISE,
    **_POOLS,
    **_MOVEMENT,
    **_NORMS,
    **_TRANSFORMER,
    **_WHOLE,
}

_LSTM = Network(
    "y, h, c = LSTM <hidden_size=4> (x, w, r, b)",
    {"x": (5, 1, 6)},
    {"w": (1, 16, 6), "r": (1, 16, 4), "b": (1, 32)},
    outputs=dict.fromkeys("yhc", "float"),
)

#: The networks for quantize_dynamic.
DYNAMIC: dict[str, Network] = {
    "lstm": _LSTM,
    **{name: NETWORKS[name] for name in "conv conv_no_bias matmul matmul_bias matmul_activations gemm gather_table".split()},
    **{name: NETWORKS[name] for name in "attention embed_layer_norm transpose encoder mobile".split()},
}

#: Pieces of networks for tests of whole conversions, beyond what each test of NETWORKS goes through.
BLOCKS: dict[str, Network] = {
    "matrices": Network(
        "q = MatMul (x, w) m = MatMul (q, z) s = Softmax <axis=1> (m) y = MatMul (s, v)",
        {"x": (2, 3, 8), "z": (2, 8, 4), "v": (2, 4, 5)},
        {"w": (8, 8)},
    ),
    "shared_weights": Network(
        _CONV
        + "r = Relu (c) d = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (r, u, v) e = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (d, u, v)"
        " s = Add (d, e) y = Concat <axis=1> (s, d, s)",
        _IMAGE,
        _CONV_WEIGHTS | {"u": (8, 8, 3, 3), "v": (8,)},
    ),
}


def build(name: str, network: Network) -> Any:
    """The onnx.ModelProto of a network, IR version 10, its weights drawn with a seed made of the name."""
    import onnx
    from onnx import numpy_helper, parser

    def value(key: str, shape: Shape) -> str:
        return f"{network.input_types.get(key, 'float')}[{','.join(map(str, shape))}] {key}"

    inputs = ", ".join(value(key, shape) for key, shape in network.inputs.items())
    outputs = ", ".join(f"{kind} {key}" for key, kind in network.outputs.items())
    graph = parser.parse_graph(f"{name} ({inputs}) => ({outputs}) {{ {network.nodes} }}")
    rng = np.random.default_rng(list(name.encode()))
    for key, weight in network.weights.items():
        array = rng.normal(0, 0.5, weight).astype(np.float32) if isinstance(weight, tuple) else weight
        graph.initializer.append(numpy_helper.from_array(array, key))
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")  # the parser reads a type without a shape as that of a scalar; inference fills it in
    for index, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{index}"
    domains = [onnx.helper.make_opsetid("", network.opset)]
    if "com.microsoft" in network.nodes:
        domains.append(onnx.helper.make_opsetid("com.microsoft", 1))
    model = onnx.helper.make_model(graph, opset_imports=domains, ir_version=10, producer_name="qconvert tests")
    return onnx.shape_inference.infer_shapes(model)
