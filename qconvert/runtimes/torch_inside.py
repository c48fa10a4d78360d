"""The inner tensors of PyTorch's files: a program rebuilt from a file returns them, and is cut at them; a file that PyTorch itself loads,
which runs code in it, is watched while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np

from qconvert.conversion.loading import read_literal_graph
from qconvert.errors import RuntimeRefusedError
from qconvert.formats.torch.program import torch_package
from qconvert.graph import Array, Arrays, Graph, Tensor
from qconvert.operators import kind_of
from qconvert.plugins import Inside, ModelFile, Pieces, format_named
from qconvert.rewriting.parts import cut
from qconvert.runtimes.packages import capture_stderr
from qconvert.runtimes.torch import arguments, as_array, as_tensors, load_module, program, run_in_torch, stateful_program
from qconvert.runtimes.torch_engines import engine_of


class _Call(NamedTuple):
    """A call that ran. The name is the one in the program; "" if it has none."""

    operator: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class _Probe:
    """A loaded file that records its calls.

    Attributes:
        operators: names of the called operators, such as "aten::relu".
        run: inputs as PyTorch's tensors -> the calls that give a tensor.
    """

    operators: frozenset[str]
    run: Callable[[Sequence[Any]], list[_Call]]


class TrustedInside:
    """A file that PyTorch loads itself, which gives out its inner tensors.

    Args:
        file: the file.
        graph: whose activations are wanted.

    Raises:
        RuntimeRefusedError: PyTorch does not load it, or calls most operators otherwise than the reader does.
    """

    cuts = False

    def __init__(self, file: ModelFile, graph: Graph) -> None:
        self._graph = read_literal_graph(file.path, format_named("torch"), file.options)
        self._engine = engine_of(self._graph)
        self._module = load_module(file.path, self._engine)
        self._probe = _probe_of(self._module)
        known = sum(_operator(op.source) in self._probe.operators for op in self._graph.ops)
        if 2 * known < len(self._graph.ops):  # programs of our own have the names of their sources
            raise RuntimeRefusedError("it calls most operators in another way than the file", rule="call-mismatch")
        own = self._graph.tensors
        self.names = frozenset(name for name in graph.tensors if name in own and not own[name].is_constant)

    def values(self, feed: Arrays) -> dict[str, Array]:
        with run_in_torch(self._engine), capture_stderr():
            calls = self._probe.run(arguments(self._module, self._graph, as_tensors(feed.values())))
        found = dict(_match_calls(self._graph, calls))
        return {name: np.asarray(value) for name, value in {**feed, **found}.items() if name in self.names}

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        raise NotImplementedError("PyTorch does not cut files")


def _probe_of(module: Any) -> _Probe:
    try:
        return _probe_script(module) if isinstance(module, torch_package().jit.ScriptModule) else _probe_program(module)
    except Exception as error:  # as above
        raise RuntimeRefusedError(f"PyTorch does not report what it calls: {str(error).strip()[:300]}", rule="call-mismatch") from error


def _probe_script(module: Any) -> _Probe:
    """Return a probe of TorchScript: its code with methods inlined returns the results of all operators outside of branches."""
    torch = torch_package()
    graph = module.inlined_graph.copy()
    torch._C._jit_pass_inline(graph)
    tensor = torch._C.TensorType.get()
    nodes = [node for node in graph.nodes() if "::" in node.kind() and not node.kind().startswith("prim::")]
    calls = [(node.kind(), value) for node in nodes for value in node.outputs() if value.type().isSubtypeOf(tensor)]
    values = [value for _, value in calls]
    every = graph.create("prim::TupleConstruct", values)
    graph.appendNode(every)
    every.output().setType(torch._C.TupleType([value.type() for value in values]))
    for _ in list(graph.outputs()):
        graph.eraseOutput(0)
    graph.registerOutput(every.output())
    function = torch._C._create_function_from_graph("probe", graph)
    kinds = [kind for kind, _ in calls]

    def run(inputs: Sequence[Any]) -> list[_Call]:
        return [_Call(kind, "", value) for kind, value in zip(kinds, function(module._c, *inputs), strict=True)]

    return _Probe(frozenset(kinds), run)


def _probe_program(module: Any) -> _Probe:
    """Return a probe of a torch.export program: it runs the nodes one after the other."""
    torch = torch_package()

    class Recorder(torch.fx.Interpreter):  # type: ignore[name-defined,misc]
        """Runs a program and keeps what its calls give."""

        def __init__(self) -> None:
            super().__init__(module)
            self.calls: list[_Call] = []

        def run_node(self, node: Any) -> Any:
            found = super().run_node(node)
            first = next(iter(found), None) if isinstance(found, (list, tuple)) else found
            if node.op == "call_function" and isinstance(first, torch.Tensor):
                self.calls.append(_Call(_operator_name(node), node.name, first))
            return found

    def run(inputs: Sequence[Any]) -> list[_Call]:
        recorder = Recorder()
        recorder.run(*inputs)
        return recorder.calls

    return _Probe(frozenset(_operator_name(node) for node in module.graph.nodes if node.op == "call_function"), run)


def _operator_name(node: Any) -> str:
    """Return the operator of a call, such as "aten::add"."""
    return "::".join(str(node.target).split(".")[:2])


def _operator(source: str) -> str:
    return source.partition(" ")[0]


def _match_calls(graph: Graph, calls: Sequence[_Call]) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of the graph with the results of their calls."""
    made = [(_operator(op.source), name) for op in graph.ops for name in op.outputs if name]
    outputs = {name for _, name in made}  # what is called y/… is a part of the call that gives y
    own = [(operator, graph[name]) for operator, name in made if name.rpartition("/")[0] not in outputs]
    for tensor, value in _pair_by_name(own, calls) if all(call.name for call in calls) else _pair_in_order(own, calls):
        found = as_array(value)
        if _fits(found, tensor):
            yield tensor.name, found


def _pair_by_name(own: Sequence[tuple[str, Tensor]], calls: Sequence[_Call]) -> Iterator[tuple[Tensor, Any]]:
    values = {call.name: call.value for call in calls}
    return ((tensor, values[tensor.name]) for _, tensor in own if tensor.name in values)


def _pair_in_order(own: Sequence[tuple[str, Tensor]], calls: Sequence[_Call]) -> Iterator[tuple[Tensor, Any]]:
    first = [(operator, _key(tensor)) for operator, tensor in own]
    second = [(call.operator, _key_of(call.value)) for call in calls]
    for block in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks():
        for place in range(block.size):
            yield own[block.a + place][1], calls[block.b + place].value


def _key(tensor: Tensor) -> Hashable:
    quantization = tensor.quantization
    if quantization is None:
        return tensor.dtype
    return (tensor.dtype, quantization.step, quantization.point) if quantization.is_per_tensor else None


def _key_of(value: Any) -> Hashable:
    dtype = str(value.int_repr().dtype if value.is_quantized else value.dtype).removeprefix("torch.")
    if not value.is_quantized:
        return dtype
    per_tensor = value.qscheme() == torch_package().per_tensor_affine
    return (dtype, float(np.float32(value.q_scale())), int(value.q_zero_point())) if per_tensor else None


def _fits(value: Array, tensor: Tensor) -> bool:
    if value.dtype.name != tensor.dtype:
        return False
    if tensor.shape is None or len(tensor.shape) != value.ndim:
        return False
    return all(isinstance(size, str) or size == own for size, own in zip(tensor.shape, value.shape, strict=True))


def inside_of(file: ModelFile, graph: Graph) -> Inside:
    """See plugins.Runtime: of the file itself if it is trusted, else of the program rebuilt from it."""
    if file.kernels == "trusted":
        return TrustedInside(file, graph)
    return TorchInside(file, graph)


class TorchInside:
    """A PyTorch file whose tensors are known by the names of a canonical graph.

    The graph is cut as it was read, before it is brought into its normal form.

    Args:
        file: the file.
        graph: whose activations are wanted; a name that the file does not have is ignored.
    """

    cuts = True

    def __init__(self, file: ModelFile, graph: Graph) -> None:
        self._graph = read_literal_graph(file.path, format_named("torch"), file.options)
        self._engine = engine_of(self._graph)
        own, sizes = self._graph.tensors, _sizes_alone(self._graph)
        wanted = {name for name, tensor in graph.tensors.items() if name in own and _is_one_width(own[name].dtype, tensor.dtype)}
        self.names = frozenset(name for name in wanted if not own[name].is_constant and name not in sizes)
        inner = tuple(name for name in own if name in self.names and name not in self._graph.inputs)
        self._order = inner
        self._probe, _, self._again = stateful_program(self._graph.evolve(outputs=inner), self._engine)

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        if self._again is not None:
            self._probe = self._again()

    def values(self, feed: Arrays) -> dict[str, Array]:
        found = dict(zip(self._order, self._probe(list(feed.values())), strict=True))
        return {name: np.asarray(value) for name, value in {**feed, **found}.items() if name in self.names}

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        part = cut(self._graph, names & self.names, wanted)
        return Pieces.of_cut(self._graph, part, program(part.graph, self._engine)[0])


def _is_one_width(a: str, b: str) -> bool:
    """Whether two types are equal, or differ only in sign, so that integers of one are those of the other with another zero point."""
    return a == b or {a, b} in ({"int8", "uint8"}, {"int16", "uint16"})


def _sizes_alone(graph: Graph) -> set[str]:
    """Return the tensors that are computed from sizes: in a program they are numbers, at which it cannot be cut."""
    known = {tensor.name for tensor in graph.constants()}
    found: set[str] = set()
    for op in graph.ops:
        if kind_of(op).lists_sizes or (
            not found.isdisjoint(op.inputs) and all(not name or name in known or name in found for name in op.inputs)
        ):
            found.update(op.outputs)
    return found
