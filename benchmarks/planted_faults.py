"""Faults of twelve kinds that random inputs hardly reach, planted in results of many models, and how many of them `qconvert check` passes.

A fault counts if it changes an output of the piece around it for some legal input: the piece, from the stored integers before the fault to
those after it, runs without and with the fault in onnxruntime, of a TFLite result in the evaluator, with inputs that are driven towards
the ends of one element of its output. Nothing of the check takes part in that. The metadata that say which conversion made a result are
kept in half of the faulty files, and taken out of the others.

    python benchmarks/planted_faults.py plant build/faults --faults 1000 [--models folder …]
    python benchmarks/planted_faults.py check build/faults --json build/planted_faults.json

The faults are planted once, so that two versions of qconvert can be measured with the same files. With --unseen only those are checked for
which three random inputs show nothing. A fault is named if a problem names what it changed, or where in the source it is seen.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from mutation_score import places_in_source
from onnx import TensorProto, helper, numpy_helper

from qconvert import check, convert, load, save
from qconvert.checking.file_in_runtime import side_of
from qconvert.conversion.comparing import load_pair
from qconvert.data import random_inputs
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.rewriting.parts import cut

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
#: Largest source, in bytes: many small networks show more than a few large ones.
LARGEST = 400_000
#: How often the element of an output is driven, with so many random inputs before.
TRIES, RANDOM = 3, 120
#: Numbers for sizes that are known only when a model runs.
SIZE = 7
Array = np.ndarray[Any, np.dtype[Any]]
Runner = Callable[[Mapping[str, Array]], list[Array]]
INTEGERS = {TensorProto.UINT8: np.uint8, TensorProto.INT8: np.int8, TensorProto.INT16: np.int16, TensorProto.UINT16: np.uint16}
#: Nodes that clip, choose or move what they read.
KEEPING = (
    "Clip", "Flatten", "Identity", "Max", "MaxPool", "GlobalMaxPool", "Min", "ReduceMax", "Relu", "Reshape", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
)  # fmt: skip
TYPES = {**INTEGERS, TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}


@dataclass(frozen=True, slots=True)
class Place:
    """An edge of an ONNX result: input `index` of `node`, in float values; with the scale and zero point of the integers after it."""

    node: onnx.NodeProto
    index: int
    name: str
    scale: float
    zero_point: int
    dtype: Any
    shape: tuple[int | str, ...]
    kind: int


class Network:
    """An ONNX result with what the faults ask of it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.shape_inference.infer_shapes(model)
        graph = self.model.graph
        self.constants = {item.name: item for item in graph.initializer}
        self.writers = {name: node for node in graph.node for name in node.output}
        infos = (*graph.value_info, *graph.input, *graph.output)
        self.types = {item.name: item.type.tensor_type.elem_type for item in infos}
        self.shapes = {
            item.name: tuple(size.dim_param or size.dim_value for size in item.type.tensor_type.shape.dim)
            for item in infos
            if item.type.tensor_type.HasField("shape")
        }

    def constant(self, name: str) -> Array:
        return np.asarray(numpy_helper.to_array(self.constants[name]))

    def stored(self, name: str) -> bool:
        return self.types.get(name) in INTEGERS and name not in self.constants

    def ends(self) -> list[onnx.NodeProto]:
        """The nodes that give stored integers from float values."""
        return [
            node
            for node in self.model.graph.node
            if node.op_type in ("QuantizeLinear", "Cast") and self.stored(node.output[0]) and self.types.get(node.input[0]) in (1, 11)
        ]

    def place(self, end: onnx.NodeProto, rng: np.random.Generator) -> Place | None:
        """An edge of the piece that ends with a node: most often its own input."""
        node, index = end, 0
        if rng.integers(3) == 0:
            inner = [node for node in self.piece(end.output[0])[0] if node is not end]
            edges = [(item, i) for item in inner for i, name in enumerate(item.input) if self.types.get(name) in (1, 11)]
            edges = [(item, i) for item, i in edges if item.input[i] not in self.constants and item.op_type != "Clip"]
            if edges:
                node, index = edges[rng.integers(len(edges))]
        name = node.input[index]
        near = end if node is end else self.writers.get(name)
        if near is None or near.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            near = end
        dtype = INTEGERS[self.types[end.output[0]]]
        scale, zero_point = 1.0, 0
        if near.op_type != "Cast":
            if near.input[1] not in self.constants or self.constant(near.input[1]).size != 1:
                return None
            scale = float(self.constant(near.input[1]).reshape(-1)[0])
            if len(near.input) > 2 and near.input[2] in self.constants:
                zero = self.constant(near.input[2])
                zero_point, dtype = int(zero.reshape(-1)[0]), zero.dtype.type
        return Place(node, index, name, scale, zero_point, dtype, self.shapes.get(name, ()), self.types[name])

    def piece(self, end: str) -> tuple[list[onnx.NodeProto], list[str]]:
        """The nodes from rounded integers and inputs to a tensor, in order, and the names of these."""
        wanted, nodes, fed = {end}, [], list[str]()
        tail = end
        while tail in self.writers and self.keeps_codes(self.writers[tail]):
            tail = self.writers[tail].input[0]
            wanted.add(tail)
        inputs = {item.name for item in self.model.graph.input}
        for node in reversed(self.model.graph.node):
            if wanted.intersection(node.output):
                nodes.append(node)
                for name in filter(None, node.input):
                    if name in self.constants or name in fed or name in wanted:
                        continue
                    if name in inputs or (self.stored(name) and not self.keeps_codes(self.writers[name])):
                        fed.append(name)
                    else:
                        wanted.add(name)
        return nodes[::-1], fed

    def keeps_codes(self, node: onnx.NodeProto) -> bool:
        """Whether a node clips, chooses or moves stored integers, so that its result need not have all codes."""
        return node.op_type in KEEPING and self.stored(node.input[0])

    def last(self, name: str) -> str:
        """A tensor, or what nodes that clip, choose or move its integers make of it where nothing else reads it."""
        while len(readers := [node for node in self.model.graph.node if name in node.input]) == 1 and self.keeps_codes(readers[0]):
            name = readers[0].output[0]
        return name

    def runner(self, end: str) -> tuple[Runner, dict[str, tuple[Any, tuple[int, ...]]]]:
        """What runs the piece that ends with a tensor, and the type and shape of what it takes."""
        import onnxruntime

        nodes, fed = self.piece(end)
        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes, "piece",
            [helper.make_tensor_value_info(name, self.types[name], self.shapes.get(name)) for name in fed],
            [helper.make_tensor_value_info(end, self.types[end], None)],
            [item for name, item in self.constants.items() if name in used],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        shapes = {
            name: (TYPES[self.types[name]], tuple(s if isinstance(s, int) and s else SIZE for s in self.shapes[name])) for name in fed
        }
        return lambda feed: [np.asarray(value) for value in session.run(None, dict(feed))], shapes


def spread(model: onnx.ModelProto, place: Place, nodes: Sequence[onnx.NodeProto], last: str) -> None:
    """Puts nodes before the place, which reads the last one's result."""
    where = next(index for index, node in enumerate(model.graph.node) if node.output == place.node.output)
    for step, node in enumerate(nodes):
        model.graph.node.insert(where + step, node)
    model.graph.node[where + len(nodes)].input[place.index] = last


def number(model: onnx.ModelProto, place: Place, name: str, value: Any) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, TYPES[place.kind]), name))
    return name


def limits(place: Place) -> tuple[float, float]:
    info = np.iinfo(place.dtype)
    return (info.min - place.zero_point) * place.scale, (info.max - place.zero_point) * place.scale


Fault = Callable[[Network, onnx.ModelProto, Place, np.random.Generator], bool]


def extra_relu(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    spread(model, place, [helper.make_node("Relu", [place.name], ["planted"], name="planted")], "planted")
    return True


def relu_after_max(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    """Where largest values are chosen, which are hardly ever negative."""
    writer, seen = network.writers.get(place.name), 0
    while writer is not None and writer.op_type not in ("ReduceMax", "MaxPool", "GlobalMaxPool", "Max") and seen < 4:
        writer, seen = network.writers.get(writer.input[0]), seen + 1
    largest = writer is not None and writer.op_type in ("ReduceMax", "MaxPool", "GlobalMaxPool", "Max")
    return largest and extra_relu(network, model, place, rng)


def extra_clip(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    """A few steps inside the range."""
    low, high = limits(place)
    steps = int(rng.integers(2, 9)) * place.scale
    bounds = [
        number(model, place, "planted_low", low + (steps if rng.integers(2) else 0)),
        number(model, place, "planted_high", high - steps),
    ]
    spread(model, place, [helper.make_node("Clip", [place.name, *bounds], ["planted"], name="planted")], "planted")
    return True


def input_clip(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    """The same between an input of the model and where it is quantized."""
    return place.name in {item.name for item in model.graph.input} and extra_clip(network, model, place, rng)


def _clips(model: onnx.ModelProto) -> list[int]:
    return [index for index, node in enumerate(model.graph.node) if node.op_type in ("Clip", "Relu")]


def lost_clip(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    found = _clips(model)
    if not found:
        return False
    node = model.graph.node[found[rng.integers(len(found))]]
    before, after = node.input[0], node.output[0]
    if after in {item.name for item in model.graph.output}:
        return False
    model.graph.node.remove(node)
    for other in model.graph.node:
        for index, name in enumerate(other.input):
            if name == after:
                other.input[index] = before
    return True


def moved_bound(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    """A bound of a Clip, by one to five hundredths of its range: in, or out to where a Cast wraps."""
    found = [index for index in _clips(model) if model.graph.node[index].op_type == "Clip"]
    found = [index for index in found if all(name in network.constants for name in model.graph.node[index].input[1:] if name)]
    if not found:
        return False
    node = model.graph.node[found[rng.integers(len(found))]]
    index = int(rng.integers(1, len(node.input)))
    if not node.input[index]:
        return False
    values = [network.constant(name) for name in node.input[1:] if name]
    span = float(values[-1]) - float(values[0]) if len(values) > 1 else 1.0
    if not 0 < span < 1e6:
        return False
    old = network.constant(node.input[index])
    by = (0.01 + 0.04 * rng.random()) * span * (1 if rng.integers(2) else -1)
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(old + by, old.dtype), "planted_bound"))
    node.input[index] = "planted_bound"
    return True


def through_float16(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    nodes = [
        helper.make_node("Cast", [place.name], ["planted_16"], name="planted_16", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["planted_16"], ["planted"], name="planted", to=place.kind),
    ]
    spread(model, place, nodes, "planted")
    return True


def half_a_step(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    half = number(model, place, "planted_half", place.scale * (0.5 if rng.integers(2) else -0.5))
    spread(model, place, [helper.make_node("Add", [place.name, half], ["planted"], name="planted")], "planted")
    return True


def rare_rows(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    """Rows from the fifth on, of a batch that is known only when the model runs, negated."""
    if not place.shape or not isinstance(place.shape[0], str):
        return False
    ends = {"planted_0": [0], "planted_4": [4], "planted_end": [2**31]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(value, np.int64), name) for name, value in ends.items())
    nodes = [
        helper.make_node("Slice", [place.name, "planted_0", "planted_4", "planted_0"], ["planted_a"]),
        helper.make_node("Slice", [place.name, "planted_4", "planted_end", "planted_0"], ["planted_b"]),
        helper.make_node("Neg", ["planted_b"], ["planted_c"]),
        helper.make_node("Concat", ["planted_a", "planted_c"], ["planted"], axis=0),
    ]
    spread(model, place, nodes, "planted")
    return True


def wrapping(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    """A QuantizeLinear that saturates is a division, a rounding and a Cast that does not."""
    if place.node.op_type != "QuantizeLinear" or place.dtype not in (np.uint8, np.int8):
        return False
    node = next(node for node in model.graph.node if node.output == place.node.output)
    scale, zero = number(model, place, "planted_scale", place.scale), number(model, place, "planted_zero", place.zero_point)
    where = list(model.graph.node).index(node)
    kind = TensorProto.UINT8 if place.dtype is np.uint8 else TensorProto.INT8
    nodes = [
        helper.make_node("Div", [place.name, scale], ["planted_a"]),
        helper.make_node("Round", ["planted_a"], ["planted_b"]),
        helper.make_node("Add", ["planted_b", zero], ["planted_c"]),
        helper.make_node("Cast", ["planted_c"], ["planted_d"], to=TensorProto.INT32),
        helper.make_node("Cast", ["planted_d"], list(node.output), to=kind),
    ]
    model.graph.node.remove(node)
    for step, new in enumerate(nodes):
        model.graph.node.insert(where + step, new)
    return True


def channel_clip(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    """One channel is cut off a few steps below the top."""
    sizes = [size for size in place.shape[1:2] or place.shape[-1:] if isinstance(size, int)]
    if not sizes or sizes[0] < 2:
        return False
    top = np.full((sizes[0], *[1] * (len(place.shape) - 2)), 1e30 if place.kind == 1 else 1e300)
    top[rng.integers(sizes[0])] = limits(place)[1] - int(rng.integers(2, 9)) * place.scale
    spread(
        model,
        place,
        [helper.make_node("Min", [place.name, number(model, place, "planted_top", top)], ["planted"], name="planted")],
        "planted",
    )
    return True


def dropped_part(network: Network, model: onnx.ModelProto, place: Place, rng: np.random.Generator) -> bool:
    """One of several nodes that stand for an operator of the source is left out; the parts have names after its own."""
    outputs = {item.name for item in model.graph.output}
    found = []
    for node in model.graph.node:
        if len(node.output) != 1 or node.output[0] in outputs or "/" not in node.output[0] or node.op_type in _MOVING:
            continue
        gone = node.output[0]
        alike = (n for n in node.input if n and n not in network.constants and network.types.get(n) == network.types.get(gone))
        found += [(node, name) for name in alike if gone in network.shapes and network.shapes.get(name) == network.shapes[gone]][:1]
    if not found:
        return False
    node, before = found[rng.integers(len(found))]
    model.graph.node.remove(node)
    for other in model.graph.node:
        for index, name in enumerate(other.input):
            if name == node.output[0]:
                other.input[index] = before
    return True


#: Nodes that are no part of an operator, but bring values to its layout or quantization.
_MOVING = ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape", "Identity")

FAULTS: Sequence[Fault] = (
    extra_relu, relu_after_max, extra_clip, input_clip, lost_clip, moved_bound, through_float16, half_a_step, rare_rows, wrapping,
    channel_clip, dropped_part,
)  # fmt: skip


def shows(sound: tuple[Runner, Mapping[str, tuple[Any, tuple[int, ...]]]], faulty: Runner, rng: np.random.Generator) -> bool:
    """Whether two pieces differ for an input: random ones, flat ones, and those that drive one element of the output to either end."""
    run, takes = sound
    reach = 1.0

    def made(pattern: Callable[[tuple[int, ...]], Array]) -> dict[str, Array]:
        feed = {}
        for name, (dtype, shape) in takes.items():
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if np.issubdtype(dtype, np.integer) else (-reach, reach)
            values = low + (np.clip(pattern(shape), -1, 1) + 1) / 2 * (float(high) - low)
            feed[name] = (np.rint(values) if np.issubdtype(dtype, np.integer) else values).astype(dtype)
        return feed

    def differs(feed: Mapping[str, Array]) -> bool:
        return any(a.shape != b.shape or not np.array_equal(a, b) for a, b in zip(run(feed), faulty(feed), strict=True))

    for wide in (1.0, 8.0, 100.0):
        reach = wide
        for flat in np.linspace(-1, 1, 17):
            if differs(made(lambda shape, flat=flat: np.full(shape, flat))):
                return True
        for _ in range(6):
            if differs(made(lambda shape: rng.uniform(-1, 1, shape))):
                return True
        if all(np.issubdtype(dtype, np.integer) for dtype, _ in takes.values()):
            break
    reach = 8.0
    for _ in range(TRIES):
        signs = [{name: rng.choice([-1.0, 1.0], shape) for name, (_, shape) in takes.items()} for _ in range(RANDOM)]

        def fed(sign: Mapping[str, Array]) -> dict[str, Array]:
            patterns = iter(sign.values())
            return made(lambda shape: next(patterns))

        results = [run(fed(sign))[0].reshape(-1).astype(np.float64) for sign in signs]
        element = int(rng.integers(results[0].size))
        found = np.array([result[element] for result in results])
        found -= found.mean()
        driven = {name: np.sign(np.tensordot(found, np.array([sign[name] for sign in signs]), 1)) for name in takes}
        for way in (1, -1):
            for share in (1.0, 0.9, 0.75, 0.5):
                if differs(fed({name: way * share * value for name, value in driven.items()})):
                    return True
    return False


def planted(model: onnx.ModelProto, rng: np.random.Generator, fault: Fault) -> onnx.ModelProto | None:
    """A result with a fault that shows; None where this place has none."""
    network = Network(model)
    ends = network.ends()
    if not ends:
        return None
    place = network.place(ends[rng.integers(len(ends))], rng)
    changed = onnx.ModelProto()
    changed.CopyFrom(network.model)
    if place is None or not fault(network, changed, place, rng):
        return None
    del changed.graph.value_info[:]
    other = Network(changed)
    onnx.checker.check_model(changed)
    lasts = dict.fromkeys(network.last(end.output[0]) for end in network.ends())
    following = [name for name in lasts if _pieces_differ(network, other, name)]
    for name in [item for item in following if item in other.writers][:1]:
        sound, faulty = network.runner(name), other.runner(name)
        if sound[1].keys() == faulty[1].keys() and shows(sound, faulty[0], rng):
            return changed
    return None


def _pieces_differ(a: Network, b: Network, name: str) -> bool:
    if name not in b.writers:
        return False
    return [node.SerializeToString() for node in a.piece(name)[0]] != [node.SerializeToString() for node in b.piece(name)[0]]


def _in_tflite(kind: str, graph: Graph, op: Op, rng: np.random.Generator) -> tuple[list[Op], list[Tensor], Op] | None:
    """Operators that a fault puts after one of a TFLite result, their tensors, and the operator as it is then."""
    tensor = graph[op.outputs[0]]
    if tensor.quantization is None or not tensor.quantization.is_per_tensor or tensor.dtype not in ("int8", "uint8", "int16"):
        return None
    before = replace(tensor, name="planted_before")
    moved = replace(op, outputs=("planted_before", *op.outputs[1:]))
    low, high = tensor.quantization.limits(tensor.dtype)
    steps = int(rng.integers(2, 9))
    if kind in ("lost_clip", "moved_bound"):
        own = op.attributes.get("activation") or ""
        other = "" if kind == "lost_clip" else {"relu6": "relu", "relu": "relu6", "relu_n1_to_1": "relu6"}.get(str(own), "")
        return ([], [], op.with_attributes(activation=other)) if own and own != other else None
    if kind == "extra_relu" or (kind == "relu_after_max" and op.kind in ("MaxPool", "ReduceMax", "Max")):
        return [Op("Relu", ("planted_before",), (tensor.name,), {}, "")], [before], moved
    if kind in ("extra_clip", "channel_clip"):
        size = (tensor.shape or (1,))[-1] if kind == "channel_clip" else 1
        if not isinstance(size, int) or (kind == "channel_clip" and size < 2):
            return None
        most = kind == "channel_clip" or bool(rng.integers(2))
        ends = np.full(size, high if most else low)
        ends[rng.integers(size)] = high - steps if most else low + steps
        bound = Tensor("planted_bound", tensor.dtype, (size,), ends.astype(tensor.dtype), tensor.quantization)
        return [Op("Min" if most else "Max", ("planted_before", "planted_bound"), (tensor.name,), {}, "")], [before, bound], moved
    if kind == "half_a_step":
        real = [Tensor(name, "float32", tensor.shape) for name in ("planted_real", "planted_sum")]
        half = Tensor("planted_half", "float32", (1,), np.float32([tensor.quantization.step * (0.5 if rng.integers(2) else -0.5)]))
        ops = [
            Op("Dequantize", ("planted_before",), ("planted_real",), {}, ""),
            Op("Add", ("planted_real", "planted_half"), ("planted_sum",), {}, ""),
            Op("Quantize", ("planted_sum",), (tensor.name,), {}, ""),
        ]
        return ops, [before, *real, half], moved
    return None


def planted_tflite(graph: Graph, rng: np.random.Generator, kind: str) -> Graph | None:
    """A TFLite result with a fault that shows in the operator with it, as the evaluator computes both; None where there is none."""
    op = graph.ops[rng.integers(len(graph.ops))]
    found = _in_tflite(kind, graph, op, rng) if len(op.outputs) == 1 else None
    if found is None or any(name and graph[name].static_shape is None for name in (*op.inputs, *op.outputs)):
        return None
    added, tensors, moved = found
    ops = [one for item in graph.ops for one in ([moved, *added] if item is op else [item])]
    faulty = graph.evolve(tensors=tensors, ops=ops)
    shared, readers, end = {name for name, tensor in graph.tensors.items() if not tensor.is_constant}, graph.consumers(), op.outputs[0]
    while len(readers.get(end, [])) == 1 and kind_of(readers[end][0]).picks:  # a Clip is a Max and a Min, which may clip more
        shared.remove(end)
        end = readers[end][0].outputs[0]
    parts = [cut(side, shared, frozenset([end])).graph for side in (graph, faulty)]
    takes = {name: (np.dtype(graph[name].dtype), graph[name].static_shape or ()) for name in parts[0].inputs}
    if parts[0].inputs != parts[1].inputs or not all(dtype.kind in "iuf" for dtype, _ in takes.values()):
        return None
    runs = [lambda feed, part=part: list(evaluate(part, feed).values()) for part in parts]
    return faulty if shows((runs[0], takes), runs[1], rng) else None


def results(sources: Sequence[Path], folder: Path) -> Iterator[tuple[Path, Path]]:
    """Conversions to ONNX of the sources that can be converted; ONNX sources once more with a batch known only when they run."""
    for number, source in enumerate(sources):
        copies = [source]
        if source.suffix == ".onnx":
            try:
                copies += _dynamic(source, folder / f"dynamic_{number}_{source.name}")
            except Exception:  # a model that does not run with another batch
                pass
        for copy in copies:
            for suffix in ("onnx", "tflite"):
                result = folder / f"{number}_{copy.stem}.{suffix}"
                try:
                    convert(copy, result, force=True)
                    yield copy, result
                except QConvertError:
                    continue


def _dynamic(source: Path, path: Path) -> list[Path]:
    import onnxruntime

    model = onnx.load(source)
    for item in (*model.graph.input, *model.graph.output):
        item.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(str(path))
    types = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(int8)": np.int8}
    feed = {item.name: np.zeros((SIZE, *item.shape[1:]), types[item.type]) for item in session.get_inputs()}
    return [path] if all(len(value) == SIZE for value in session.run(None, feed)) else []


def plant(folder: Path, wanted: int, seed: int, models: Sequence[Path]) -> None:
    """Plants faults, of each kind as many as can be, and lists them in faults.json."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(file for root in (FIXTURES, *models) for file in root.rglob("*") if file.suffix in (".tflite", ".onnx"))
    sources = [file for file in files if file.stat().st_size <= LARGEST]
    pairs = list(results(sources, folder))
    loaded: dict[Path, Any] = {result: onnx.load(result) if result.suffix == ".onnx" else load(result) for _, result in pairs}
    rng, listed, counts = np.random.default_rng(seed), list[dict[str, Any]](), Counter[str]()
    started, tried = time.perf_counter(), Counter[str]()
    while len(listed) < wanted:
        fault = min(FAULTS, key=lambda item: (counts[item.__name__] + tried[item.__name__] / 25, rng.random()))
        tried[fault.__name__] += 1
        source, result = pairs[rng.integers(len(pairs))]
        bare = bool(counts[fault.__name__] % 2)
        path = folder / f"fault_{len(listed)}{result.suffix}"
        try:
            if not _written(loaded[result], path, rng, fault, bare):
                continue
        except Exception:  # a place where the fault makes no model
            continue
        counts[fault.__name__] += 1
        listed.append({"kind": fault.__name__, "source": str(source), "sound": result.name, "result": path.name, "bare": bare})
        if not len(listed) % 50:
            print(f"{len(listed)} faults, {time.perf_counter() - started:.0f} s: {dict(counts)}", flush=True)
            (folder / "faults.json").write_text(json.dumps(listed))
    (folder / "faults.json").write_text(json.dumps(listed))


def _written(result: Any, path: Path, rng: np.random.Generator, fault: Fault, bare: bool) -> bool:
    """Writes a result with a fault, if there is one that shows."""
    if isinstance(result, Graph):
        graph = planted_tflite(result, rng, fault.__name__)
        if graph is not None:
            save(replace(graph, metadata={}) if bare else graph, path, force=True)
        return graph is not None
    model = planted(result, rng, fault)
    if model is not None:
        if bare:
            del model.metadata_props[:]
        onnx.save(model, path)
    return model is not None


def checked(folder: Path, limit: int, unseen: bool) -> dict[str, Any]:
    """The verdict on each fault as counts by kind, the faults that pass, and those that fail and are not named."""
    faults = json.loads((folder / "faults.json").read_text())[:limit]
    verdicts: dict[str, Counter[str]] = {}
    passed, unnamed, started = [], [], time.perf_counter()
    for index, item in enumerate(faults):
        key = f"{item['kind']}, {'bare' if item['bare'] else 'with metadata'}"
        try:
            if unseen and _shows_at_random(folder / item["sound"], folder / item["result"]):
                continue
            report = check(item["source"], folder / item["result"])
            verdict = report.verdict
            if verdict == "not equal" and not _is_named(folder, item, report.problems):
                unnamed.append({**item, "problem": report.problems[0]})
        except Exception as error:  # whatever it raises is told
            verdict = f"{type(error).__name__}: {str(error)[:80]}"
        verdicts.setdefault(key, Counter())[verdict] += 1
        if verdict in ("passed", "as declared"):
            passed.append(item)
        if index % 50 == 49:
            print(f"{index + 1} checked, {len(passed)} passed, {time.perf_counter() - started:.0f} s", flush=True)
    return {"verdicts": {key: dict(found) for key, found in sorted(verdicts.items())}, "passed": passed, "unnamed": unnamed,
            "faults": sum(found.total() for found in verdicts.values()), "seconds": time.perf_counter() - started}  # fmt: skip


def _shows_at_random(sound: Path, faulty: Path) -> bool:
    """Whether outputs of two results differ for random inputs."""
    sides = [side_of(path, "", "", {}) for path in (sound, faulty)]
    models = [side.open() for side in sides]
    for feed in random_inputs(sides[0].graph, 3, 0):
        pairs = zip(*(model.run(feed).values() for model in models), strict=True)
        if any(not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
            return True
    return False


def _is_named(folder: Path, item: Mapping[str, Any], problems: Sequence[str]) -> bool:
    """Whether a problem names a tensor that a fault changed, or the operator of the source at which it is seen."""
    source, faulty = load_pair(Path(item["source"]), folder / item["result"], {})
    sound = load(folder / item["sound"])
    own, others = ({op.outputs: (op.kind, op.inputs, op.attributes) for op in graph.ops} for graph in (sound, faulty))
    changed = {name for names in own.keys() | others.keys() if own.get(names) != others.get(names) for name in names}
    for name, tensor in faulty.tensors.items():
        if name in sound and tensor.data is not None and sound[name].data is not None and not np.array_equal(tensor.data, sound[name].data):
            changed |= {output for op in faulty.ops if name in op.inputs for output in op.outputs}
    places = {name for graph in (sound, faulty) for name in places_in_source(graph, source, changed)}
    labels = [f"{op.source} (" for op in source.ops if op.source and not places.isdisjoint(op.outputs)]
    return any(word in text for word in (*map(repr, changed | places), *labels) for text in problems)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plant", "check"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--models", type=Path, nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unseen", action="store_true", help="only the faults that random inputs do not show")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "plant":
        plant(arguments.folder, arguments.faults, arguments.seed, arguments.models)
        return
    found = checked(arguments.folder, arguments.faults, arguments.unseen)
    for key, verdicts in found["verdicts"].items():
        print(f"{key}: {verdicts}")
    print(f"{len(found['passed'])} of {found['faults']} faults pass, {len(found['unnamed'])} fail unnamed, {found['seconds']:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
