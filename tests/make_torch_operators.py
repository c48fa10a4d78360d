"""Computes formats/torch/operators.npz and moves.npz: what PyTorch gives for the expressions of torch_operators.py and torch_moves.py,
and how it writes them down.

Usage, with PyTorch installed: python tests/make_torch_operators.py

`texts` holds, as JSON, for each case: inputs, their names; code, the TorchScript of a trace; constants, what that calls CONSTANTS;
program, the document of torch.export (not for quantized tensors). <name>/0, 1 … are the results, quantized ones as integers with
<name>/0/quantization, scale and zero point.
"""

from __future__ import annotations

import ast
import io
import json
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (as PyTorch documents it)
from torch_moves import CASES as MOVES
from torch_operators import CASES, GRIDS, constants, inputs

GLOBALS: dict[str, Any] = {"torch": torch, "F": F, "Q": torch.ops.quantized, "plain": lambda result: _plain(result)}
GLOBALS |= {name: torch.from_numpy(value) for name, value in constants().items()}
for _name, (_scale, _zero, _dtype) in GRIDS.items():
    GLOBALS[_name] = lambda x, s=_scale, z=_zero, d=_dtype: torch.quantize_per_tensor(x, s, z, getattr(torch, d))


def _module(names: list[str], expression: str) -> torch.nn.Module:
    space = dict(GLOBALS)
    arguments = ", ".join(names)
    exec(f"class M(torch.nn.Module):\n  def forward(self, {arguments}):\n    return plain({expression})\n", space)
    module: torch.nn.Module = space["M"]().eval()
    return module


def _plain(result: Any) -> Any:
    """A named tuple as a plain one."""
    return tuple(result) if isinstance(result, tuple) else result


def _program(module: torch.nn.Module, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """models/model.json without what is of the machine that wrote it."""
    buffer = io.BytesIO()
    exported = torch.export.export(module, arguments)
    torch.export.save(exported, buffer)
    with zipfile.ZipFile(buffer) as archive:
        name = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        document = json.loads(archive.read(name))
    document["tensors"] = {
        name: _listed(np.asarray(value.detach())) for name, value in {**exported.state_dict, **exported.constants}.items()
    }
    for node in document["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {}
    document["guards_code"] = document["graph_module"]["module_call_graph"] = []
    return dict(document)


def _listed(value: np.ndarray[Any, Any]) -> list[Any]:
    return [str(value.dtype), value.shape, value.reshape(-1).tolist()]


def _code(module: torch.nn.Module, arguments: tuple[Any, ...]) -> dict[str, Any]:
    text, constants = torch.jit.trace(module, arguments, check_trace=False).code_with_constants
    held = constants.const_mapping
    listed = [np.asarray(held[f"c{index}"]) for index in range(len(held))]
    return {"code": text, "constants": [_listed(value) for value in listed]}


def main() -> None:
    warnings.simplefilter("ignore")
    for name, cases in (("operators", CASES), ("moves", MOVES)):
        write(name, cases)


def write(name: str, cases: Mapping[str, str]) -> None:
    """Computes one list of expressions and writes its file."""
    values = {name: torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape)) for name, value in inputs().items()}
    found: dict[str, np.ndarray[Any, Any]] = {}
    texts: dict[str, Any] = {}
    for case, expression in cases.items():
        words = [node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)]
        names = [each for each in values if each in words]
        module, arguments = _module(names, expression), tuple(values[name] for name in names)
        result = module(*arguments)
        texts[case] = {"inputs": names, **_code(module, arguments)}
        if not case.startswith("quantized"):
            texts[case]["program"] = _program(module, arguments)
        for index, output in enumerate(result if isinstance(result, tuple) else (result,)):
            if output.is_quantized:
                found[f"{case}/{index}/quantization"] = np.array([output.q_scale(), output.q_zero_point()])
                output = output.int_repr()
            found[f"{case}/{index}"] = output.detach().numpy()
    found["texts"] = np.frombuffer(json.dumps(texts).encode(), np.uint8)
    np.savez_compressed(Path(__file__).with_name("formats") / "torch" / f"{name}.npz", **found)


if __name__ == "__main__":
    main()
