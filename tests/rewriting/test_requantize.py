"""Another quantization for one tensor: integers of constants and of biases follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from refusals import refused
from small_graphs import graph

from qconvert import Quantization
from qconvert.errors import OptionError
from qconvert.rewriting import with_quantization
from qconvert.rules.validation import validate


def test_an_activation_takes_its_biases_with_it() -> None:
    net = graph()
    new = with_quantization(net, "x", Quantization.per_tensor(0.25, -1))
    validate(new)
    assert new["x"].quantization == Quantization.per_tensor(0.25, -1)
    np.testing.assert_array_equal(new["b"].data, [16, 40, -2])  # type: ignore[arg-type]
    np.testing.assert_array_equal(new["b"].quantization.scale, np.float32([0.0625, 0.025, 0.5]))  # type: ignore[union-attr]
    np.testing.assert_array_equal(new["b"].float_values(), net["b"].float_values())
    assert new["w"] is net["w"] and new["y"] is net["y"]


def test_weights_are_rounded_and_biases_move() -> None:
    net = graph()
    new = with_quantization(net, "w", Quantization.per_axis([0.5, 0.1, 4.0], 0))
    validate(new)
    np.testing.assert_array_equal(new["w"].data, [[0, 1], [-3, 4], [2, 3]])  # type: ignore[arg-type]  # 0.5 and 2.5 go to even
    np.testing.assert_array_equal(new["b"].data, [4, 20, 0])  # type: ignore[arg-type]


def test_the_result_of_a_product_changes_nothing_else() -> None:
    net = graph()
    new = with_quantization(net, "y", Quantization.per_tensor(1.0, 5))
    assert new["b"] is net["b"] and new["y"].quantization == Quantization.per_tensor(1.0, 5)


def test_errors_name_the_tensor() -> None:
    net = graph()
    with refused(OptionError, "unknown-tensor", holds=("'v'",)):
        with_quantization(net, "v", Quantization.per_tensor(1.0))
    with refused(OptionError, "not-quantized", holds=("'z'",)):
        with_quantization(net, "z", Quantization.per_tensor(1.0))
    large = net.evolve(tensors=[replace(net["b"], data=np.int32([2**31 - 1, 0, 0]))])
    with refused(OptionError, "integers-too-large", holds=("'b'", "int32")):
        with_quantization(large, "x", Quantization.per_tensor(0.25, 3))
