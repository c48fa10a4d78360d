"""TensorRT: ONNX whose quantized values are int8 on symmetric quantizations (its kernels are in kernels/tensorrt.py), and the command line
of trtexec, which builds an engine of a model.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from qconvert.errors import InvalidGraphError
from qconvert.kernels import KERNELS
from qconvert.plugins import Storage, Target, defer_imports

if TYPE_CHECKING:
    from qconvert.graph import Graph


#: Sizes of a dynamic batch: smallest, optimal, largest.
_BATCHES = (1, 4, 16)
#: What is tried for other dynamic dimensions, at most.
_LARGEST = 224

Shape = tuple[int, ...]


def trtexec(graph: Graph, model: str, scales: str = "") -> str:
    """The command line that makes an engine, and for which versions it is, as a comment.

    Args:
        graph: that is written.
        model: its file.
        scales: a calibration cache next to it; "" where the model has its scales.
    """
    words = ["trtexec", f"--onnx={model}"]
    words += ["--int8", f"--calib={scales}"] if scales else ["--stronglyTyped"]
    # The parser calls an input that is an output besides otherwise.
    found = {f"__{name}" if name in graph.outputs else name: shapes for name, shapes in bounds(graph).items()}
    for flag, place in (("--minShapes", 0), ("--optShapes", 1), ("--maxShapes", 2)) if found else ():
        sizes = (f"{_quote_name(name)}:{'x'.join(map(str, shapes[place]))}" for name, shapes in found.items())
        words.append(f"{flag}={','.join(sizes)}")
    words.append(f"--saveEngine={PurePath(model).with_suffix('.plan')}")
    said = "TensorRT 8 to 10; 11 takes no caches" if scales else "TensorRT 10; in 11 --stronglyTyped is always on"
    return f"{shlex.join(words)}  # {said}{'; dynamic dimensions are examples' if found else ''}"


def _quote_name(name: str) -> str:
    """A name as trtexec takes it: between single quotes where other signs than those of words are in it."""
    return name if re.fullmatch(r"[\w./-]+", name, re.ASCII) else f"'{name}'"


def bounds(graph: Graph) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Smallest, optimal and largest shapes of the inputs whose sizes are known only at run time.

    A batch (a first size that occurs nowhere else) is 1 to 16 if the operators take that. Another size is a single number that they take.
    """
    from qconvert.data.input_limits import number_of

    shapes = {name: shape for name in graph.inputs if (shape := graph[name].shape) and any(isinstance(size, str) for size in shape)}
    if not shapes:
        return {}
    numbers = next((one for one in _candidates(graph) if _fits(graph, one)), {})
    batches = {shape[0] for shape in shapes.values() if isinstance(shape[0], str)} - {
        size for shape in shapes.values() for size in shape[1:]
    }
    several = [{**numbers, **{str(name): count for name in batches}} for count in _BATCHES]
    chosen = several if all(_fits(graph, one) for one in several) else [numbers] * 3
    triples = {name: tuple(tuple(map(number_of(one), shape)) for one in chosen) for name, shape in shapes.items()}
    return {name: (low, usual, high) for name, (low, usual, high) in triples.items()}


def _candidates(graph: Graph) -> Iterator[Mapping[str, int]]:
    """Numbers to try for names of sizes: those that operators demand, with the larger ones for the others first."""
    from qconvert.data.input_limits import sizes_to_try

    found = [one for one in sizes_to_try(graph) if max(one.values(), default=0) <= _LARGEST]
    yield from sorted(found, key=lambda one: -sum(one.values()))
    yield from sizes_to_try(graph)


def _fits(graph: Graph, numbers: Mapping[str, int]) -> bool:
    """Whether shapes contradict each other nowhere with these numbers."""
    from qconvert.data.input_limits import number_of
    from qconvert.operators.shapes_and_functions import infer

    number = number_of(numbers)
    tensors = {
        name: tensor if tensor.shape is None else replace(tensor, shape=tuple(map(number, tensor.shape)) if name in graph.inputs else None)
        for name, tensor in graph.tensors.items()
        if tensor.data is None
    }
    try:
        infer(replace(graph, tensors={**graph.tensors, **tensors}))
    except InvalidGraphError:
        return False
    return True


_PASSES = (
    "lift_states", "expand_definitions", "carry_custom", "fold_constants", "widen_float16", "dynamic_range", "fold_qat_batch_norm",
    "fuse_dilation", "fuse_pad", "assign_layout", "store_activations", "symmetric_weights", "symmetric_activations", "isolate_float",
    "float_io", "integer_io", "states_to_io", "shift_to_symmetric", "sparse_pairs", "spread_addends", "int32_bias_to_float",
    "remove_dead_code",
)  # fmt: skip
_INT8, _FP8 = ("int8",), "float8e4m3fn"


_lazy = defer_imports("qconvert.targets")
#: What TensorRT refuses; TensorRT-RTX lacks some plugins and kernels besides, and devices lack others.
_own_rules = _lazy("rules_tensorrt", "own_rules")


def _devices(rtx: bool) -> dict[str, dict[str, Any]]:
    """What compute capabilities before 8.9 lack."""
    return {
        name: {"kernels": KERNELS[f"tensorrt:{name}"], "own_rules": partial(_own_rules, rtx=rtx, device=name)}
        for name in ("sm75", "sm80", "sm86")
    }


_TENSORRT = Target(
    "tensorrt", "onnx", "TensorRT: symmetric int8, integers and scales kept",
    passes=_PASSES, write_options={"numerics": "fast", "guards": False}, checked_by="onnxruntime:unoptimized",
    layout="channels_first", kernels=KERNELS["tensorrt:sm89"],
    storage=Storage(activations="int8", weights="int8", activation_dtypes=(*_INT8, _FP8), symmetric_activations=_INT8,
                    weight_dtypes={"int8": _INT8, _FP8: (_FP8,)}, symmetric_weights=True, weight_granularity="per_axis"),
    own_rules=partial(_own_rules, rtx=False), edge_rules=_lazy("rules_tensorrt", "edge_rules"), by_kernels=_devices(rtx=False),
    with_scales="tensorrt-cache", command=trtexec,
)  # fmt: skip

#: Biases become real first, so that they keep their values next to other scales.
_CACHE_PASSES = (
    "expand_definitions", "carry_custom", "dynamic_range", "fold_qat_batch_norm", "fold_batch_norm", "fuse_dilation", "fuse_pad",
    "assign_layout", "unsigned_to_signed", "symmetric_weights", "int32_bias_to_float", "symmetric_activations",
    "remove_redundant_requantize", "decompose_activations", "remove_dead_code",
)  # fmt: skip

TARGETS = (
    _TENSORRT,
    _TENSORRT.derive(name="tensorrt-rtx", summary="TensorRT-RTX: as tensorrt, without the operators that it lacks",
                     own_rules=partial(_own_rules, rtx=True), by_kernels=_devices(rtx=True)),
    # TensorRT up to 10 quantizes a float model by itself (implicit quantization), with the scales of the cache. Activations are int8 with
    # one scale and zero point 0; weights get max|w| / 127 of each output channel, whatever they had. Which layers run on integers
    # TensorRT decides by their speed. Nothing of it was tried: the packages that install have explicit quantization alone.
    Target(
        "tensorrt-cache", "onnx", "TensorRT up to 10: a float model, with symmetric scales in a separate calibration cache",
        passes=_CACHE_PASSES, needs_scales=True, command=trtexec, layout="channels_first",
        storage=Storage(activations="int8", weights="int8", symmetric_activations=("int8",), free_edges=False),
    ),
)  # fmt: skip
