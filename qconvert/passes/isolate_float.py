"""isolate_float: operators that the target cannot run on integers run on real values, between Dequantize and Quantize.

That is what a quantized operator means, but for ties: the real values are float32 before they are rounded to the grid, so a result may
be another by one step, seldom on grids of 8 bits, more often on those of 16, whose steps are nearer to float32's. Each operator is listed;
with partial "forbid" they are an error instead. Constant weights keep their integers behind a Dequantize, which LiteRT computes once, when
it loads a model; without it, integer weights beside real data would make TFLite's kernels round the data to integers too ("hybrid"
kernels). Other constants become real.

With numerics "exact", so do operators whose kernels fix the grid of their results (Sigmoid, Softmax) where they have another: what a kernel
rounded to 1/256 would be rounded again, by up to half of all elements otherwise. LiteRT's XNNPACK makes one table of such an operator and
the conversions around it, which takes no longer; its Softmax of real values takes a third of the integer one's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, scale_and_zero_point
from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.graph.kinds import KINDS
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.passes.stored_types import UNSIGNED
from qconvert.plugins import Target

__all__ = ["isolated", "run"]

#: Elements from which on a matrix that is no operator's weights stays in 8 bits behind a DEQUANTIZE.
_LARGE = 1024
#: Types of up to 8 bits whose integers, or those of the sign that is wanted, any type of 8 bits holds.
_BYTES = ("int4", "uint4", "uint8")
#: The rank of the weights of a convolution over two dimensions.
_FLAT_RANK = 4


def run(graph: Graph, target: Target | None, *, partial: str = "allow", numerics: str = "exact") -> tuple[Graph, tuple[str, ...]]:
    """Makes the conversions explicit around every operator that the target cannot run on integers, as Target.judge says, and around those
    that are exact on real values alone, unless partial is "forbid" or numerics "fast".

    Raises:
        UnsupportedError: partial is "forbid" and there are such operators; all are listed.
    """
    if target is None or not target.knows_kernels:
        return graph, ()
    exact = numerics == "exact" and partial == "allow"

    def reason(op: Op) -> str:
        return target.judge(graph, op, final=False).isolated_for or (_coarse(graph, target, op) if exact else "")

    isolating = _Isolating(graph, reason, target)
    for op in graph.ops:
        isolating.visit(op)
    if partial == "forbid":
        _refuse_floats(graph, target, isolating)
    return isolating.result()


def isolated(graph: Graph, reason: Callable[[Op], str], target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """The graph with operators on real values between Dequantize and Quantize, and what was done in words.

    Args:
        graph: what is changed.
        reason: an operator -> why it has to be there, in the words of a list of many; "" if it need not.
        target: says in which type constant weights may stay integers.
    """
    isolating = _Isolating(graph, reason, target)
    for op in graph.ops:
        isolating.visit(op)
    return isolating.result()


def _refuse_floats(graph: Graph, target: Target, isolating: _Isolating) -> None:
    """Raises UnsupportedError where operators would run on real values: those that were isolated, and those that did so before."""
    reasons, first = Counter(isolating.reasons), isolating.first
    for op, verdict in target.verdicts(graph, final=False):
        if verdict.isolated_for or KINDS[op.kind].rule in ("convert", "move"):  # which compute nothing
            continue
        results = [graph[name] for name in op.outputs if name]
        if any("float" in result.dtype and not result.is_quantized for result in results):
            reasons[op.kind, "its results are float in the source"] += 1
            first = first or f"{op.source} {op}".strip()
    if reasons:
        listed = "; ".join(f"{count} {kind}: {reason}" for (kind, reason), count in sorted(reasons.items()))
        raise UnsupportedError(
            f"operators that would run on real values: {listed} (the first is {first})",
            remedy="Use --partial allow, or quantize the tensors named.",
        )


def _read_as_weights(graph: Graph) -> set[str]:
    """Tensors that are the weights of an operator, but for groups of a volume, which are taken apart when they are written."""
    found: set[str] = set()
    for op in graph.ops:
        names = KINDS[op.kind].named(op, "weights")
        found.update(name for name in names if op.attributes.get("group", 1) == 1 or (graph[name].rank or 0) <= _FLAT_RANK)
    return found


def _coarse(graph: Graph, target: Target, op: Op) -> str:
    """Why the kernel's result would be rounded twice; "" if it is exact, or need not be."""
    if op.kind not in target.exact_on_reals:
        return ""
    result = graph[op.outputs[0]]
    fixed = target.fixed_outputs.get(op.kind, {}).get(result.dtype)
    if fixed is None or result.quantization is None:
        return ""
    wanted = Quantization(np.array([fixed[0]], np.float32), np.array([fixed[1]], np.int64))
    return (
        ""
        if result.shares_grid(replace(result, quantization=wanted))
        else "their kernel fixes another grid, from which they would be rounded again"
    )


class _Isolating:
    def __init__(self, graph: Graph, reason: Callable[[Op], str], target: Target | None) -> None:
        self._graph = graph
        self._reason = reason
        self._unpacked = target.unpacked_weights if target is not None else ""
        self._unpacked_blocks = target.unpacked_blocks if target is not None else ()
        self._symmetric = target is not None and self._unpacked in target.symmetric_activations
        self._keeps_packed = target is None or graph.metadata.get(SOURCE_KERNELS) in target.same_kernels
        self._real: dict[str, str] = {}
        self._stored: dict[str, str] = {}  # constant -> the same in another type
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.ops: list[Op] = []
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.first = ""
        self.constants = 0
        self.packed = 0
        self._weights = _read_as_weights(graph)

    def result(self) -> tuple[Graph, tuple[str, ...]]:
        """The graph of the operators that were visited, and what was done in words."""
        if self.ops == list(self._graph.ops) and not self.tensors:
            return self._graph, ()
        listed = [f"{count} {kind}: {reason}" for (kind, reason), count in sorted(self.reasons.items())]
        notes = [f"on real values between Dequantize and Quantize, in float32: {line}" for line in listed]
        told = ((self.packed, "weights of operators on real values stay integers, behind a Dequantize"),
                (self.constants, "quantized constants of operators on real values are real, each rounded to float32"))  # fmt: skip
        changed = self._graph.evolve(tensors=self.tensors.values(), ops=self.ops)
        return changed, (*notes, *(f"{count} {text}" for count, text in told if count))

    def visit(self, op: Op) -> None:
        """Takes an operator over, isolated if it has to be. Where the source's own kernels unpack constants, they go on to do so."""
        if op.kind == "Dequantize" and not self._keeps_packed and op.outputs[0] not in self._graph.public:
            packed, constant = self._packed(*op.inputs, *op.outputs), self._real_constant(op.inputs[0], op.outputs[0])
            if constant is not None and not packed:
                self.tensors[op.outputs[0]] = constant
                self.constants += 1
                return
            if packed:
                self.ops.append(replace(op, inputs=(packed,)))
                return
        reason = self._reason(op)
        if not reason:
            self.ops.append(op)
            return
        self.reasons[op.kind, reason] += 1
        self.first = self.first or f"{op.source} {op}".strip()
        inputs = tuple(self._dequantized(name) if name and self._graph[name].is_quantized else name for name in op.inputs)
        outputs, behind = [], []
        for name in op.outputs:
            if not name or not self._graph[name].is_quantized:
                outputs.append(name)
                continue
            real = self._add(f"{name}/real", self._graph[name].shape)
            outputs.append(real)
            behind.append(Op("Quantize", (real,), (name,), {}, op.source))
        self.ops += [replace(op, inputs=inputs, outputs=tuple(outputs)), *behind]

    def _dequantized(self, name: str) -> str:
        if name not in self._real:
            self._real[name] = self._add(f"{name}/real_value", self._graph[name].shape)
            real, packed = self._real_constant(name, self._real[name]), self._packed(name, name)
            if real is None:
                self._unpack(name)
            elif packed:
                self.packed += 1
                self.ops.append(Op("Dequantize", (packed,), (self._real[name],)))
            else:
                self.tensors[self._real[name]] = real
                self.constants += 1
        return self._real[name]

    def _unpack(self, name: str) -> None:
        """A Dequantize; where float32 does not hold the largest steps of a mask, they are its largest number, not infinite, from which no
        scale leads back."""
        q, dtype = self._graph[name].quantization, self._graph[name].dtype
        low, high = integer_range(dtype) if "float" not in dtype else (0, 0)
        ends = 0.0 if q is None else max(float(np.abs((end - q.zero_point) * q.scale.astype(np.float64)).max()) for end in (low, high))
        if ends <= float(np.finfo(np.float32).max):
            self.ops.append(Op("Dequantize", (name,), (self._real[name],)))
            return
        whole = self._add(f"{name}/unlimited", self._graph[name].shape)
        limits = []
        for hint, value in (("least", np.finfo(np.float32).min), ("most", np.finfo(np.float32).max)):
            limits.append(self._add(f"{name}/{hint}", ()))
            self.tensors[limits[-1]] = replace(self.tensors[limits[-1]], data=np.array(value, np.float32))
        self.ops += [Op("Dequantize", (name,), (whole,)), Op("Clip", (whole, *limits), (self._real[name],))]

    def _packed(self, name: str, read: str) -> str:
        """A constant in the type that the target unpacks by itself; "" if it is none of those that stay integers.

        Weights do, and large matrices with a zero point that no kernel takes of weights (dynamic_range).

        Args:
            name: of the constant.
            read: the tensor that operators take, the constant itself or what a Dequantize makes of it.
        """
        tensor, wanted = self._graph[name], self._unpacked
        q, data = tensor.quantization, tensor.data
        if q is not None and q.block_size:
            return self._in_blocks(tensor)
        if q is None or data is None or not wanted or (self._symmetric and not q.is_symmetric):
            return ""
        if read not in self._weights and not (data.ndim == 2 and data.size >= _LARGE and not q.is_symmetric):
            return ""
        if tensor.dtype == wanted or name in self._stored:
            return self._stored.get(name, name)
        if tensor.dtype not in _BYTES:
            return ""
        by = integer_range(wanted)[0] - integer_range(tensor.dtype)[0] if tensor.dtype == UNSIGNED.get(wanted) else 0
        self._stored[name] = made = self._names.fresh(f"{name}/{wanted}")
        stored = (data.astype(np.int16) + by).astype(numpy_dtype(wanted))
        self.tensors[made] = Tensor(made, wanted, tensor.shape, stored, q.shifted(by))
        return made

    def _in_blocks(self, tensor: Tensor) -> str:
        """Weights with a scale for each block as integers less their zero points, in the narrowest type that holds them.

        "" where none does, or where not all blocks are whole and all scales positive, which runtimes ask for.
        """
        q, data, name = tensor.quantization, tensor.data, tensor.name
        if q is None or q.axis is None or data is None or name in self._stored or not data.size or "float" in tensor.dtype:
            return self._stored.get(name, "")
        if data.shape[q.axis] % q.block_size or not (q.scale > 0).all():
            return ""
        steps = data.astype(np.int64) - scale_and_zero_point(q, data.shape)[1]
        for dtype in self._unpacked_blocks:
            low, high = integer_range(dtype)
            if low <= steps.min() and steps.max() <= high:
                self._stored[name] = made = name if dtype == tensor.dtype and q.is_symmetric else self._names.fresh(f"{name}/{dtype}")
                grid = replace(q, zero_point=np.zeros_like(q.zero_point))
                self.tensors[made] = Tensor(made, dtype, tensor.shape, steps.astype(numpy_dtype(dtype)), grid)
                return made
        return ""

    def _real_constant(self, name: str, wanted: str) -> Tensor | None:
        """The real values of a quantized constant, each rounded once to float32; None if `name` is no constant."""
        tensor = self._graph[name]
        if tensor.data is None or tensor.quantization is None:
            return None
        return Tensor(wanted, "float32", tensor.shape, dequantize(tensor.data, tensor.quantization).astype(np.float32))

    def _add(self, wanted: str, shape: object) -> str:
        name = self._names.fresh(wanted)
        self.tensors[name] = Tensor(name, "float32", shape)  # type: ignore[arg-type]
        return name
