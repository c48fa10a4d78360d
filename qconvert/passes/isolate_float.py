"""isolate_float: operators that the target cannot run on integers run on real values, between Dequantize and Quantize.

That is what a quantized operator means, but for ties: the real values are float32 before they are rounded to the grid, so a result may
be another by one step, seldom on grids of 8 bits, more often on those of 16, whose steps are nearer to float32's. Each operator is listed;
with partial "forbid" they are an error instead. Their constants become real: integer weights beside real data would make TFLite's
kernels round the data to integers too ("hybrid" kernels).

With numerics "exact", so do operators whose kernels fix the grid of their results (Sigmoid, Softmax) where they have another: what a kernel
rounded to 1/256 would be rounded again, by up to half of all elements otherwise. LiteRT's XNNPACK makes one table of such an operator and
the conversions around it, which takes no longer; its Softmax of real values takes a third of the integer one's time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range
from qconvert.graph.kinds import KINDS
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.plugins import Target

__all__ = ["run"]

#: Elements from which on a constant stays in 8 bits behind a DEQUANTIZE.
_LARGE = 1024


def run(graph: Graph, target: Target | None, *, partial: str = "allow", numerics: str = "exact") -> tuple[Graph, tuple[str, ...]]:
    """Makes the conversions explicit around every operator that the target cannot run on integers, as Target.judge says, and around those
    that are exact on real values alone, unless partial is "forbid" or numerics "fast".

    Raises:
        UnsupportedError: partial is "forbid" and there are such operators; all are listed.
    """
    if target is None or not target.knows_kernels:
        return graph, ()
    isolating = _Isolating(graph, target, exact=numerics == "exact" and partial == "allow")
    for op in graph.ops:
        isolating.visit(op)
    if partial == "forbid":
        _refuse_floats(graph, target, isolating)
    if not isolating.reasons and not isolating.constants:
        return graph, ()
    listed = [f"{count} {kind}: {reason}" for (kind, reason), count in sorted(isolating.reasons.items())]
    changed = graph.evolve(tensors=isolating.tensors.values(), ops=isolating.ops)
    notes = [f"on real values between Dequantize and Quantize, in float32: {line}" for line in listed]
    notes += [f"{isolating.constants} quantized constants of operators on real values are real, each rounded to float32"] * bool(
        isolating.constants
    )
    return changed, tuple(notes)


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


def _is_packed(tensor: Tensor) -> bool:
    """Whether a constant is worth to be kept in 8 bits: a large matrix, with a zero point that no kernel takes of weights (dynamic_range).

    Weights of convolutions would be turned to TFLite's order of axes at each run.
    """
    q, data = tensor.quantization, tensor.data
    if q is None or data is None or tensor.dtype != "int8" or not q.is_per_tensor or q.is_symmetric:
        return False
    return data.ndim == 2 and data.size >= _LARGE


class _Isolating:
    def __init__(self, graph: Graph, target: Target, exact: bool) -> None:
        self._graph = graph
        self._target = target
        self._exact = exact
        self._keeps_packed = graph.metadata.get(SOURCE_KERNELS) in target.same_kernels
        self._real: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.ops: list[Op] = []
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.first = ""
        self.constants = 0

    def visit(self, op: Op) -> None:
        """Takes an operator over, isolated if it has to be. Where the source's own kernels unpack constants, they go on to do so."""
        if op.kind == "Dequantize" and not self._keeps_packed and op.outputs[0] not in self._graph.public:
            constant = self._real_constant(op.inputs[0], op.outputs[0])
            if constant is not None and not _is_packed(self._graph[op.inputs[0]]):
                self.tensors[op.outputs[0]] = constant
                self.constants += 1
                return
        reason = self._target.judge(self._graph, op, final=False).isolated_for or self._coarse(op)
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

    def _coarse(self, op: Op) -> str:
        """Why the kernel's result would be rounded twice; "" if it is exact, or need not be."""
        if not self._exact or op.kind not in self._target.exact_on_reals:
            return ""
        result = self._graph[op.outputs[0]]
        fixed = self._target.fixed_outputs.get(op.kind, {}).get(result.dtype)
        if fixed is None or result.quantization is None:
            return ""
        wanted = Quantization(np.array([fixed[0]], np.float32), np.array([fixed[1]], np.int64))
        return (
            ""
            if result.shares_grid(replace(result, quantization=wanted))
            else "their kernel fixes another grid, from which they would be rounded again"
        )

    def _dequantized(self, name: str) -> str:
        if name not in self._real:
            self._real[name] = self._add(f"{name}/real_value", self._graph[name].shape)
            real = self._real_constant(name, self._real[name])
            if real is None:
                self._unpack(name)
            else:
                self.tensors[self._real[name]] = real
                self.constants += 1
        return self._real[name]

    def _unpack(self, name: str) -> None:
        """A Dequantize; where float32 does not hold the largest steps of a mask, they are its largest number, not infinite, from which no
        scale leads back."""
        q = self._graph[name].quantization
        low, high = integer_range(self._graph[name].dtype)
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
