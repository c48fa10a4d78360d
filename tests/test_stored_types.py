"""As which type onnxruntime stores each tensor of bytes of a network, predicted and as its optimizer writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_nodes import model_of

from qconvert.conversion import load
from qconvert.kernels.onnxruntime import is_left_in_float, stored_types

pytestmark = pytest.mark.onnxruntime


def write_network(path: Path, rng: np.random.Generator) -> None:
    """Convolutions, MaxPools, LeakyRelus and additions of int8 in QDQ form, each of a random result before it."""
    from onnx import TensorProto, helper, numpy_helper, save

    constants, nodes, scales = [], [], {"a": 0.05, "y": 0.2}

    def hold(name: str, value: np.generic | np.ndarray) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def quantize(real: str, name: str) -> str:
        qparams = [hold(f"{name}_scale", np.float32(scales[name])), hold(f"{name}_point", np.int8(3))]
        nodes.append(helper.make_node("QuantizeLinear", [real, *qparams], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *qparams], [name]))
        return name

    names = [quantize("x", "a")]
    for number in range(int(rng.integers(2, 6))):
        kind, source, name = str(rng.choice(["Conv", "MaxPool", "Add", "LeakyRelu", "MaxPool"])), str(rng.choice(names)), f"t{number}"
        inputs, attributes = [source], {}
        if kind == "Conv":
            qparams = [hold(f"{name}_w_scale", np.float32(0.02)), hold(f"{name}_w_point", np.int8(0))]
            weights = hold(f"{name}_w_q", rng.integers(-99, 99, (4, 4, 1, 1)).astype(np.int8))
            nodes.append(helper.make_node("DequantizeLinear", [weights, *qparams], [f"{name}_w"]))
            inputs.append(f"{name}_w")
        elif kind == "Add":
            inputs.append(str(rng.choice(names)))
        elif kind == "MaxPool":
            attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        scales[name] = scales[source] if kind == "MaxPool" else 0.01 * (number + 3)
        nodes.append(helper.make_node(kind, inputs, [f"{name}_real"], **attributes))
        names.append(quantize(f"{name}_real", name))
    nodes.append(helper.make_node("Add", [names[-1], str(rng.choice(names[:-1]))], ["y_real"]))
    quantize("y_real", "y")
    needed, kept = {"y"}, []
    for node in reversed(nodes):
        if node.output[0] in needed:
            kept.insert(0, node)
            needed.update(node.input)
    sides = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in (("x", (1, 4, 8, 8)), ("y", None))]
    graph = helper.make_graph(kept, "g", *sides, [item for item in constants if item.name in needed])
    save(model_of(graph), path)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_additions_left_in_float(first: int, tmp_path: Path) -> None:
    """A MaxPool's result is uint8 like any other's; what one operator reads twice stays int8, as what several read."""
    import onnx
    import onnxruntime

    left = 0
    for seed in range(first, first + 20):
        path, optimized = tmp_path / "m.onnx", tmp_path / "optimized.onnx"
        write_network(path, np.random.default_rng(seed))
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(optimized), 4
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        in_float = {node.output[0] for node in onnx.load(optimized).graph.node if node.op_type == "Add"}
        graph = load(path)
        for op in graph.of_kind("Add"):
            assert "" not in stored_types(graph, op)
            assert is_left_in_float(graph, op) == (op.name.removesuffix("_q") + "_real" in in_float), (seed, op.name)
            left += is_left_in_float(graph, op)
    assert left
