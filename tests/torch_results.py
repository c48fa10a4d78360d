"""What PyTorch gave for expressions, and how it writes them down: the files that make_torch_operators.py computes, as models and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.conversion.loading import load
from qconvert.evaluate import evaluate
from qconvert.graph import Graph
from tests.torch_export_models import exported
from tests.torch_operators import inputs
from tests.torchscript_models import Instance, archive


def _array(listed: Any) -> np.ndarray[Any, Any]:
    dtype, shape, values = listed
    return np.array(values, dtype).reshape(shape)


class Results:
    """The results of one list of expressions.

    Args:
        name: of the list.
    """

    def __init__(self, name: str) -> None:
        self._values = np.load(Path(__file__).parent / "formats" / "torch" / f"{name}.npz")
        self._texts: dict[str, Any] = json.loads(bytes(self._values["texts"]))
        self._inputs = inputs()

    def trace(self, case: str, folder: Path) -> Graph:
        """The graph of an expression's trace."""
        traced = [(self._inputs[name].dtype.name, self._inputs[name].shape) for name in self._texts[case]["inputs"]]
        lines = ["class M(Module):", *(f"  {line}" for line in self._texts[case]["code"].splitlines())]
        code = {"__torch__.py": "\n".join([*lines, ""])}
        return load(archive(folder / "model.pt", code, Instance("__torch__.M"), self._constants(case), traced))

    def _constants(self, case: str) -> list[np.ndarray[Any, Any]]:
        return list(map(_array, self._texts[case]["constants"]))

    def program(self, case: str, folder: Path) -> Graph:
        """The graph of an expression's torch.export program."""
        program = self._texts[case]["program"]
        held = {name: _array(value) for name, value in program["tensors"].items()}
        return load(exported(folder / "model.pt2", program, held))

    def compare(self, graph: Graph, case: str, steps: int = 0) -> None:
        """The outputs of a graph are PyTorch's: integers, scales and zero points equal, float values to float32's last bits.

        Args:
            graph: of the expression.
            case: its name.
            steps: by which integers may differ, where PyTorch divides by a scale in float32.
        """
        given = dict(zip(graph.inputs, (self._inputs[name] for name in self._texts[case]["inputs"]), strict=True))
        results = list(evaluate(graph, given).values())
        assert len(results) == sum(key.startswith(f"{case}/") and not key.endswith("/quantization") for key in self._values)
        for index, (name, result) in enumerate(zip(graph.outputs, results, strict=True)):
            wanted = self._values[f"{case}/{index}"]
            assert result.shape == wanted.shape and result.dtype == wanted.dtype and graph[name].static_shape in (None, wanted.shape)
            if f"{case}/{index}/quantization" in self._values:
                quantization = graph[name].quantization
                scale, zero_point = self._values[f"{case}/{index}/quantization"]
                assert quantization is not None and quantization.scale[0] == np.float32(scale) and quantization.zero_point[0] == zero_point
                differences = np.abs(result.astype(np.int64) - wanted.astype(np.int64))
                assert differences.max(initial=0) <= steps and np.mean(differences > 0) < 0.02, f"{np.mean(differences > 0):.3%} differ"
            else:
                precision = 2e-3 if wanted.dtype == np.float16 else 2e-5
                assert np.allclose(result.astype(np.float64), wanted.astype(np.float64), rtol=precision, atol=precision)
