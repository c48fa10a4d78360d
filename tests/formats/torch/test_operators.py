"""Operators that compute: what PyTorch gave for each, from a TorchScript archive and from a torch.export program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.conversion.loading import load
from qconvert.evaluate import evaluate
from qconvert.graph import Graph
from tests.torch_export_models import exported
from tests.torch_operators import CASES, inputs
from tests.torchscript_models import Instance, archive

_VALUES = np.load(Path(__file__).with_name("operators.npz"))
_TEXTS: dict[str, Any] = json.loads(bytes(_VALUES["texts"]))
_INPUTS = inputs()


def _given(graph: Graph, case: str) -> dict[str, np.ndarray[Any, Any]]:
    return dict(zip(graph.inputs, (_INPUTS[name] for name in _TEXTS[case]["inputs"]), strict=True))


def _compare(graph: Graph, case: str) -> None:
    """The outputs of a graph are PyTorch's: integers, scales and zero points equal, real values to float32's last bits."""
    results = list(evaluate(graph, _given(graph, case)).values())
    assert len(results) == sum(key.startswith(f"{case}/") and not key.endswith("grid") for key in _VALUES)
    for index, (name, result) in enumerate(zip(graph.outputs, results, strict=True)):
        wanted = _VALUES[f"{case}/{index}"]
        assert result.shape == wanted.shape and result.dtype == wanted.dtype
        assert graph[name].shape == wanted.shape
        if f"{case}/{index}/grid" in _VALUES:
            grid = graph[name].quantization
            scale, zero_point = _VALUES[f"{case}/{index}/grid"]
            assert grid is not None and grid.scale[0] == np.float32(scale) and grid.zero_point[0] == zero_point
            assert np.array_equal(result, wanted), f"{np.mean(result != wanted):.3%} differ"
        else:
            precision = 2e-3 if wanted.dtype == np.float16 else 2e-5
            assert np.allclose(result.astype(np.float64), wanted.astype(np.float64), rtol=precision, atol=precision)


@pytest.mark.parametrize("case", CASES)
def test_a_trace_means_what_pytorch_computes(tmp_path: Path, case: str) -> None:
    constants = [np.array(values, dtype).reshape(shape) for dtype, shape, values in _TEXTS[case]["constants"]]
    traced = [(_INPUTS[name].dtype.name, _INPUTS[name].shape) for name in _TEXTS[case]["inputs"]]
    lines = ["class M(Module):", *(f"  {line}" for line in _TEXTS[case]["code"].splitlines())]
    code = {"__torch__.py": "\n".join([*lines, ""])}
    _compare(load(archive(tmp_path / "model.pt", code, Instance("__torch__.M"), constants, traced)), case)


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("quantized")])
def test_a_program_means_what_pytorch_computes(tmp_path: Path, case: str) -> None:
    _compare(load(exported(tmp_path / "model.pt2", _TEXTS[case]["program"], {})), case)
