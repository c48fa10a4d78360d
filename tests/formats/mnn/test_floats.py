"""The float network of a quantized one: what is left of conversions between quantizations."""

from __future__ import annotations

import numpy as np
from passes.graphs import make, q

from qconvert import Op, Tensor
from qconvert.encodings import Place
from qconvert.formats.mnn.float_network import split_encodings
from qconvert.rules.validation import validate


def int8(name: str, scale: float, zero_point: int = 0) -> Tensor:
    return Tensor(name, "int8", (1, 4), None, q(scale, zero_point))


def test_a_requantized_tensor_has_the_quantization_on_which_it_was_computed() -> None:
    ops = [Op("Relu", ("x",), ("a",)), Op("Requantize", ("a",), ("b",)), Op("Relu", ("b",), ("y",))]
    network, encodings = split_encodings(make(ops, [int8("x", 0.1), int8("a", 0.1), int8("b", 0.3), int8("y", 0.3)], "x", "y"), exact=False)
    validate(network)
    assert [(op.kind, op.inputs, op.outputs) for op in network.ops] == [("Relu", ("x",), ("a",)), ("Relu", ("a",), ("y",))]
    assert {place.name: found.qparams.quantization.scale[0] for place, found in encodings.entries.items() if found.qparams} == {
        "x": np.float32(0.1), "a": np.float32(0.1), "y": np.float32(0.3),
    }  # fmt: skip


def test_what_becomes_an_output_has_its_name() -> None:
    ops = [Op("Relu", ("x",), ("a",)), Op("Requantize", ("a",), ("y",)), Op("Neg", ("a",), ("z",))]
    network, encodings = split_encodings(
        make(ops, [int8("x", 0.1), int8("a", 0.1), int8("y", 0.3), int8("z", 0.1)], "x", "y z"), exact=False
    )
    validate(network)
    assert [(op.kind, op.inputs, op.outputs) for op in network.ops] == [("Relu", ("x",), ("y",)), ("Neg", ("y",), ("z",))]
    quantization = encodings[Place("y")].qparams
    assert quantization is not None and quantization.quantization.scale[0] == np.float32(0.1)


def test_an_input_that_is_an_output_and_two_names_of_one_result() -> None:
    ops = [Op("Requantize", ("x",), ("y",)), Op("Relu", ("x",), ("a",)), Op("Requantize", ("a",), ("z",)), Op("Requantize", ("a",), ("w",))]
    tensors = [int8("x", 0.1), int8("a", 0.1), int8("y", 0.3), int8("z", 0.3), int8("w", 0.4)]
    network, _ = split_encodings(make(ops, tensors, "x", "y z w"), exact=False)
    validate(network)
    kinds = [(op.kind, op.inputs, op.outputs) for op in network.ops]
    assert kinds == [("Identity", ("x",), ("y",)), ("Relu", ("x",), ("z",)), ("Identity", ("z",), ("w",))]
