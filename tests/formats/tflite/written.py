"""What the tests of the TFLite writer share: what a file holds, and whether LiteRT gives the same for two files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from formats.test_operators import random_value
from loaded import tflite_graph
from tflite_models import Array, TensorSpec, run_litert

from qconvert import diff
from qconvert.errors import RuntimeRefusedError
from qconvert.formats.tflite.writer import build
from qconvert.graph import Tensor


def opened(data: bytes) -> Any:
    """The model as objects of the schema."""
    from ai_edge_litert import schema_py_generated as schema

    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))


def codes(data: bytes) -> list[tuple[str, int]]:
    """Name and version of each operator, in order."""
    from ai_edge_litert import schema_py_generated as schema

    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
    model = opened(data)
    found = []
    for operator in model.subgraphs[0].operators or []:
        code = model.operatorCodes[operator.opcodeIndex]
        name = names[max(code.builtinCode, code.deprecatedBuiltinCode)]
        found.append((code.customCode.decode() if name == "CUSTOM" else name, code.version))
    return found


def rewritten(data: bytes) -> bytes:
    """The model read, written and read again: nothing differs."""
    first = tflite_graph(data, "model")
    result = build(first, {})
    assert diff(first, tflite_graph(result, "model")) == []
    return result


def require_same_outputs(source: bytes, result: bytes, inputs: Sequence[Array], refusals: dict[str, str] | None = None) -> None:
    """Both kernel sets give the same bits for both files.

    Args:
        source: what LiteRT runs; kernels that refuse it are left out, but not all may.
        result: the written file.
        inputs: stored values.
        refusals: kernels that may refuse the result -> a part of the message.
    """
    ran = 0
    for kernels in ("default", "reference"):
        try:
            wanted = run_litert(source, inputs, kernels)
        except RuntimeRefusedError as error:
            print(f"{kernels} kernels refuse the source: {error}")
            continue
        if refusals and kernels in refusals:
            try:
                run_litert(result, inputs, kernels)
            except RuntimeRefusedError as error:
                assert refusals[kernels] in str(error)
                continue
            raise AssertionError(f"{kernels} kernels take what they are said to refuse")
        found = run_litert(result, inputs, kernels)
        ran += 1
        for a, b in zip(wanted, found, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes(), f"{kernels} kernels differ"
    assert ran


def random_stored(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Stored values for an input; sizes that are open are 1."""
    shape = tuple(size if isinstance(size, int) else 1 for size in tensor.shape or ())
    scale = None if tensor.quantization is None else 1.0
    return random_value(TensorSpec(tensor.name, shape, tensor.dtype, scale), rng)
