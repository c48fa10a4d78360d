"""from_torch(): a module of PyTorch that is in memory, as a canonical graph.

The module is written into an archive in a temporary folder, by torch.export, or by torch.jit.trace where it computes on quantized tensors,
which torch.export refuses; the archive is then read as any file. So there is one reader, and what a live module means is what its file
means.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qconvert.conversion import load
from qconvert.errors import OptionError, QConvertError, UnsupportedError
from qconvert.files.temporary import temporary_folder
from qconvert.formats.torch.frameworks import torch_package
from qconvert.graph import Graph
from qconvert.live.prepare_module import prepare_module
from qconvert.plugins.option_types import ReadOptions

__all__ = ["from_torch"]


def from_torch(module: Any, example_inputs: Any, *, dynamic_shapes: Any = None) -> Graph:
    """The canonical graph of a PyTorch module; integers, scales and zero points are the module's own.

    Takes eager and FX quantized modules (torch.ao.nn.quantized, torch.ao.nn.intrinsic.quantized), modules under quantization-aware training
    before conversion (their fake quantization by the scales in its buffers), PT2E GraphModules, modules with torchao's tensors, networks
    with OneFlow's observers (docs/pytorch.md), float modules, ScriptModules and ExportedPrograms. The module stays as it is.

    Args:
        module: the torch.nn.Module. It is read as in eval mode.
        example_inputs: a tensor or a tuple of tensors, as its forward takes them. Their shapes are those of the graph's inputs, and so are
            the scale and zero point of a quantized tensor.
        dynamic_shapes: sizes that are known only at run time, as torch.export.export takes them: for each input a mapping of axes to
            torch.export.Dim, or None.

    Returns:
        The graph in its normal form, as load() gives it.

    Raises:
        QConvertError: the module cannot be written, or holds what is not covered.
        MissingPackageError: torch is not installed.

    Example:
        >>> graph = qconvert.from_torch(model, (torch.zeros(1, 3, 224, 224),))
        >>> qconvert.save(graph, "model.onnx")
    """
    torch = torch_package()
    inputs = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    what = type(module).__name__
    with temporary_folder() as folder, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        path = Path(folder) / f"{what if what.isidentifier() else 'module'}.pt2"
        try:
            path = _save_module(torch, module, inputs, dynamic_shapes, path)
            return load(path, "torch", **_shape_options(path, inputs, dynamic_shapes))
        except QConvertError as error:
            error.file = f"the module {what}"
            raise


def _save_module(torch: Any, module: Any, inputs: Sequence[Any], dynamic_shapes: Any, path: Path) -> Path:
    """Writes a module into an archive that the reader takes; returns its path, whose suffix says which."""
    if isinstance(module, torch.export.ExportedProgram):
        torch.export.save(module, path)
        return path
    if not isinstance(module, torch.nn.Module):
        raise OptionError(f"from_torch() takes a torch.nn.Module, not {type(module).__name__}", rule="not-a-module")
    if not all(isinstance(value, torch.Tensor) and _has_one_scale(torch, value) for value in inputs):
        raise OptionError(
            "example inputs are tensors, or quantized tensors with one scale",
            remedy="Give a tensor, or a tuple of the tensors that forward() takes.",
            rule="inputs-not-tensors",
        )
    if isinstance(module, torch.jit.ScriptModule):
        torch.jit.save(module, path.with_suffix(".pt"))
        return path.with_suffix(".pt")
    ready = prepare_module(torch, module)
    ways: list[Callable[[], Path]] = [
        lambda: _export_module(torch, ready, inputs, dynamic_shapes, path),
        lambda: _trace_module(torch, ready, inputs, path.with_suffix(".pt")),
    ]
    quantized = any(value.is_quantized for value in inputs) or _computes_on_quantized_tensors(torch, ready)
    return _try_ways(list(reversed(ways)) if quantized else ways)


def _has_one_scale(torch: Any, value: Any) -> bool:
    return not value.is_quantized or value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)


def _export_module(torch: Any, module: Any, inputs: Sequence[Any], dynamic_shapes: Any, path: Path) -> Path:
    torch.export.save(torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic_shapes), path)
    return path


def _trace_module(torch: Any, module: Any, inputs: Sequence[Any], path: Path) -> Path:
    torch.jit.save(torch.jit.trace(module, tuple(inputs), check_trace=False), path)
    return path


def _try_ways(ways: Sequence[Callable[[], Path]]) -> Path:
    """What the first way gives that torch takes; the error of the first tells why none does."""
    failures: list[Exception] = []
    for way in ways:
        try:
            return way()
        except QConvertError:
            raise
        except Exception as error:  # torch raises what it likes
            failures.append(error)
    first = str(failures[0]).strip().splitlines() or [""]
    raise UnsupportedError(
        f"torch can neither export nor trace the module: {type(failures[0]).__name__}: {first[0][:300]}",
        remedy="Call module(*example_inputs) and torch.export.export(module, example_inputs), whose errors say more.",
        rule="export-failed",
    ) from failures[0]


def _computes_on_quantized_tensors(torch: Any, module: Any) -> bool:
    """Whether a module has packed parameters, or makes quantized tensors, which torch.export does not take."""
    for child in module.modules():
        home = type(child).__module__
        if home.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")) and ".reference" not in home:
            if type(child).__name__ not in ("FloatFunctional", "FXFloatFunctional"):
                return True
        if any(isinstance(value, torch.ScriptObject) for value in vars(child).values()):
            return True
        if isinstance(child, torch.fx.GraphModule) and any(_makes_quantized(torch, node) for node in child.graph.nodes):
            return True
    return any(value.is_quantized for value in (*module.parameters(), *module.buffers()))


def _makes_quantized(torch: Any, node: Any) -> bool:
    return node.op == "call_function" and node.target in (torch.quantize_per_tensor, torch.quantize_per_channel)


def _shape_options(path: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> ReadOptions:
    """A trace does not say the shapes of its inputs: the option of the reader that does."""
    if path.suffix == ".pt2":
        return {}
    stated = list(dynamic_shapes.values()) if isinstance(dynamic_shapes, Mapping) else list(dynamic_shapes or ())
    texts = []
    for index, value in enumerate(inputs):
        named = (stated[index] if index < len(stated) else None) or {}
        named = dict(enumerate(named)) if isinstance(named, (tuple, list)) else named
        sizes = [getattr(named.get(axis), "__name__", str(size)) for axis, size in enumerate(value.shape)]
        quantization = f"({value.q_scale()!r},{value.q_zero_point()})" if value.is_quantized else ""
        texts.append(f"{','.join(sizes)}:{str(value.dtype).removeprefix('torch.')}{quantization}")
    return {"input_shape": "; ".join(texts)}
