"""For the tests of plugins: graphs to try things on, and what a format, a pass or a target promises, as assertions.

With pytest the fixture `sample_graph` gives each of the graphs in turn (qconvert/pytest_plugin.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.conformance.examples import QUANTIZED_KINDS, Example, kinds_with_kernels, make_graph, random_operands
from qconvert.conformance.matrix import Cell, conformance, measure_excess, run_file, write_graph
from qconvert.conversion import load, normalize, run_passes, save
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.evaluate import evaluate, stored_inputs
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Arrays, Graph, Op, Quantization, Tensor, equal_data, integer_range, numpy_dtype
from qconvert.graph.names import quote_nearest
from qconvert.kernels import Kernel, Kernels
from qconvert.operators import KINDS
from qconvert.plugins import Derived, ModelFile, Pass, Runtime, Target, find_target, format_named, kernels_named, pass_named, target_named
from qconvert.rewriting.parts import computable_ops
from qconvert.rules.validation import validate

__all__ = [
    "Cell",
    "Tried",
    "assert_exact",
    "assert_kernels_hold",
    "assert_round_trips",
    "assert_target_takes",
    "conformance",
    "kinds_with_kernels",
    "make_graph",
    "random_inputs",
    "random_operands",
    "sample_graphs",
    "try_kernels",
]

_SEED = 20260101
#: Problems in one file: most of the time goes into passes, files and processes.
_TOGETHER = 25


def sample_graphs() -> dict[str, Graph]:
    """Small graphs of what real models are made of, by name: int8 and uint8 layers, data movement, pairs of Q and DQ, real numbers."""
    return {
        "convolutions": _convolutions("int8"),
        "convolutions_uint8": _convolutions("uint8"),
        "dense": _dense(),
        "moves": _data_movement(),
        "pairs": _pairs(),
        "real": _float_graph(),
    }


def random_inputs(graph: Graph, seed: int = _SEED) -> dict[str, Array]:
    """Stored values for a graph's inputs: all of its type's for integers, from a normal distribution for real numbers. Dynamic dimensions
    are 2."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in graph.inputs:
        tensor = graph[name]
        shape = tuple(size if isinstance(size, int) else 2 for size in tensor.shape or ())
        if tensor.dtype.startswith("float"):
            found[name] = rng.standard_normal(shape).astype(numpy_dtype(tensor.dtype))
        elif tensor.dtype == "bool":
            found[name] = rng.integers(0, 2, shape).astype(bool)
        else:
            low, high = integer_range(tensor.dtype)
            found[name] = rng.integers(low, high, shape, np.int64, endpoint=True).astype(numpy_dtype(tensor.dtype))
    return found


def assert_exact(
    item: Pass | str, graphs: Iterable[Graph] | None = None, target: Target | Derived | str | None = None, **options: Any
) -> None:
    """Asserts that a pass changes no bit of any output, leaves valid graphs, and does something at all.

    Args:
        item: a Pass, or the name of one that is registered.
        graphs: to run it on; by default those of sample_graphs().
        target: what it is told to fit them to, or its name.
        options: of the pass.

    Raises:
        AssertionError: an output differs, a graph is not valid any more, or none was changed.
    """
    chosen, changed = None if target is None else find_target(target), False
    for graph in sample_graphs().values() if graphs is None else graphs:
        after, notes = item.run(graph, chosen, **options) if isinstance(item, Pass) else run_passes(graph, [item], chosen, **options)
        validate(after)
        changed = changed or after is not graph
        _assert_equal_outputs(graph, after, f"pass {item if isinstance(item, str) else item.name}")
        assert after is graph or notes, f"the pass changed {graph.name!r} and does not say what"
    assert changed, "the pass changed none of the graphs: give one that it acts on"


def assert_round_trips(format: str, graphs: Mapping[str, Graph] | None = None, **options: Any) -> tuple[str, ...]:
    """Asserts that graphs which a format can hold come back from a file with every output equal, bit for bit.

    Each is first fitted to the format's default target, as a conversion does.

    Args:
        format: the name of a format that is read and written.
        graphs: by name; by default sample_graphs().
        options: of the format's writer.

    Returns:
        The names of the graphs that the format refuses, with UnsupportedError.

    Raises:
        AssertionError: an output differs, or every graph is refused.
    """
    graphs = sample_graphs() if graphs is None else graphs
    known, refused = format_named(format), []
    target = target_named(known.default_target) if known.default_target else None
    with temporary_folder() as folder:
        for name, graph in graphs.items():
            path = Path(folder, name + known.suffix_for(options))
            try:
                fitted, _ = normalize(graph, target)
                save(fitted, path, format, **options)
                again = load(path, format)
            except UnsupportedError:
                refused.append(name)
                continue
            _assert_equal_outputs(fitted, again, f"{format}: {name}")
    assert len(refused) < len(graphs), f"{format} refuses every graph: {', '.join(refused)}"
    return tuple(refused)


def assert_target_takes(target: Target | Derived | str, graphs: Iterable[Graph] | None = None, **options: Any) -> None:
    """Asserts that a target's passes bring graphs to where it refuses none of their operators.

    Args:
        target: a Target, or the name of one that is registered.
        graphs: by default those of sample_graphs().
        options: of its passes.

    Raises:
        AssertionError: an operator is refused; the rule is named.
    """
    chosen = find_target(target)
    for graph in sample_graphs().values() if graphs is None else graphs:
        fitted, _ = normalize(graph, chosen, **options)
        refused = [f"{op}: {verdict.rule}" for op, verdict in chosen.verdicts(fitted) if verdict.runs == "refused"]
        assert not refused, f"{chosen.name} refuses in {graph.name!r}: {'; '.join(refused)}"


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of the problems of one kind and type in a runtime.

    Attributes:
        kind, dtype: of the problems.
        row: the row that stands for their operator.
        problems: how many there were.
        elements: how many were compared.
        known: how many of them were compared with the row's reference.
        differing: how many of them are not what the row's reference gives, or lie beyond its tolerance.
        worst: how far beyond, in steps.
    """

    kind: str
    dtype: str
    row: Kernel
    problems: int
    elements: int
    known: int
    differing: int
    worst: float


def try_kernels(
    kernels: str,
    target: Target | Derived | str,
    kinds: Sequence[str] = QUANTIZED_KINDS,
    types: Sequence[str] = ("int8", "uint8"),
    count: int = 5,
    seed: int = _SEED,
    refused: dict[str, str] | None = None,
    examples: Sequence[Example] = (),
) -> tuple[Tried, ...]:
    """Runs random operators in a runtime, some in one file, and compares with what the rows of its kernels say; of kinds that
    these do not name, with what the rows of the target say.

    Args:
        kernels: as in `--kernels`, such as "litert:reference".
        target: for which the operators are written, or its name; those that it runs in float are tried as such.
        kinds: of operators.
        types: of their data.
        count: how many problems of each kind and type.
        seed: of their scales and inputs.
        refused: gets the error of each kind of which a problem was not written, or did not run.
        examples: operators of the kinds without types and scales, which are tried in turn; by default the kinds' own.

    Returns:
        The result for each kind and type covered by the format and the runtime, and for each row of kernels that applies: one for the
        operators of which its reference knows the integers, one for the others.
    """
    chosen = find_target(target)
    # A pass that takes another form where a kernel is coarse would leave the kernel untried.
    chosen = replace(chosen, passes=tuple(item for item in chosen.passes if "one rounding" not in pass_named(item).ensures))
    runtime, name = kernels_named(kernels)

    @cache
    def rows_of(name: str) -> Kernels:
        """The rows of some kernels of the runtime, and those of the target for kinds that they do not name."""
        rows = runtime.rows(name)
        named = {kind for row in rows.rows for kind in row.kinds}
        return rows.with_rows(*(row for row in chosen.kernels.rows if row.kinds and named.isdisjoint(row.kinds)))

    rows = rows_of(name)
    found: dict[tuple[str, str, int, bool], list[Tried]] = {}
    with temporary_folder() as folder:
        for kind, dtype, first in itertools.product(kinds, types, range(0, count, _TOGETHER)):
            problems = []
            for number in range(first, min(first + _TOGETHER, count)):
                rng = np.random.default_rng((seed, number, *kind.encode(), *dtype.encode()))
                example = examples[number % len(examples)] if examples else None
                graph = make_graph(kind, dtype, rng, rows, chosen.layout, example, chosen.storage.weights == "uint8")
                problems.append(_Problem(graph, example, rng))
            for tried in _try_problems(kind, problems, chosen, runtime, name, rows_of, folder, {} if refused is None else refused):
                found.setdefault((kind, dtype, id(tried.row), tried.known > 0), []).append(tried)
    return tuple(
        replace(
            items[0],
            worst=max(item.worst for item in items),
            **{name: sum(getattr(item, name) for item in items) for name in ("problems", "elements", "known", "differing")},
        )
        for items in found.values()
    )


@dataclass(frozen=True, slots=True)
class _Problem:
    """A graph of one operator, the example of which it was made, and what chooses its inputs."""

    graph: Graph
    example: Example | None
    rng: np.random.Generator


def _try_problems(
    kind: str,
    problems: Sequence[_Problem],
    target: Target,
    runtime: Runtime,
    kernels: str,
    rows_of: Callable[[str], Kernels],
    folder: Path,
    refused: dict[str, str],
) -> list[Tried]:
    """Problems whose results are integers in one file; in two if that is refused."""
    problems = [problem for problem in problems if not problem.graph[problem.graph.outputs[0]].dtype.startswith("float")]
    if not problems:
        return []
    states = [problem.rng.bit_generator.state for problem in problems]
    try:
        fitted, path = write_graph(_join([problem.graph for problem in problems]), target, folder)
        parts = [_extract_part(fitted, number) for number in range(len(problems))]
        stored = [random_operands(part, kind, item.rng, item.example) for part, item in zip(parts, problems, strict=True)]
        together = {f"{number}_{name}": values for number, given in enumerate(stored) for name, values in given.items()}
        results = run_file(path, fitted, together, runtime, kernels)
        left = runtime.taken_by(ModelFile(path, kernels)) if runtime.taken_by is not None else {}
    except QConvertError as error:
        if len(problems) == 1:
            refused[kind] = str(error)
            return []
        for problem, state in zip(problems, states, strict=True):
            problem.rng.bit_generator.state = state
        halves = problems[: len(problems) // 2], problems[len(problems) // 2 :]
        return [item for half in halves for item in _try_problems(kind, half, target, runtime, kernels, rows_of, folder, refused)]
    places = dict(zip(fitted.outputs, results, strict=True))
    found = []
    for number, (problem, part) in enumerate(zip(problems, parts, strict=True)):
        name = f"{number}_{part.outputs[0]}"
        own = rows_of(left.get(f"{name}/", left.get(name, kernels)))
        found.append(_compare(kind, problem.graph, part, own, stored[number], places[name]))
    return [item for item in found if item is not None]


def _join(graphs: Sequence[Graph]) -> Graph:
    """Return one graph of several, the number of each before the names of its tensors."""
    new = [{name: f"{number}_{name}" for name in graph.tensors} for number, graph in enumerate(graphs)]
    return replace(
        graphs[0],
        tensors={names[old]: replace(graph[old], name=names[old]) for graph, names in zip(graphs, new, strict=True) for old in names},
        ops=tuple(op.with_names(names) for graph, names in zip(graphs, new, strict=True) for op in graph),
        inputs=tuple(names[name] for graph, names in zip(graphs, new, strict=True) for name in graph.inputs),
        outputs=tuple(names[name] for graph, names in zip(graphs, new, strict=True) for name in graph.outputs),
    )


def _extract_part(graph: Graph, number: int) -> Graph:
    """Return one of the graphs that were joined, after the passes of a target."""
    prefix = f"{number}_"
    inputs, outputs = ([name for name in names if name.startswith(prefix)] for names in (graph.inputs, graph.outputs))
    ops = computable_ops(graph, graph.inputs, frozenset(outputs))
    named = {name for op in ops for name in op.names} | {*inputs, *outputs}
    new = {name: name.removeprefix(prefix) for name in named}
    return replace(
        graph,
        tensors={new[name]: replace(graph[name], name=new[name]) for name in named if name},
        ops=tuple(op.with_names(new) for op in ops),
        inputs=tuple(new[name] for name in inputs),
        outputs=tuple(new[name] for name in outputs),
    )


def _compare(kind: str, graph: Graph, fitted: Graph, rows: Kernels, stored: Arrays, result: Array) -> Tried | None:
    """What became of one problem; None if no row stands for it, or passes made other operators of it."""
    own = fitted.of_kind(kind)
    whole = len(own) == 1 and own[0].outputs == fitted.outputs and {*fitted.inputs} <= {*own[0].inputs}
    place = fitted if whole else graph
    if any(place[name].dtype != fitted[name].dtype or place[name].quantization != fitted[name].quantization for name in fitted.inputs):
        return None
    op = own[0] if whole else graph.ops[0]
    row = rows.of(place, op)
    if row is None or (not own and row.runs in ("float", "inexact")):
        return None
    if (row.reference is not None and not whole) or (row.fault is not None and row.fault(place, op)):
        return None  # in float no kernel of integers ran, and what a row says is wrong proves nothing
    off, is_known = measure_excess(place, op, stored_inputs(place, op, stored), result, rows)
    known = off.size if is_known else 0
    return Tried(kind, graph[graph.inputs[0]].dtype, row, 1, off.size, known, int((off > 0).sum()), float(off.max(initial=0)))


def assert_kernels_hold(kernels: str, target: Target | Derived | str, **options: Any) -> tuple[Tried, ...]:
    """Asserts that a runtime gives what the rows of its kernels say, on random operators; see try_kernels().

    Args:
        kernels, target, options: as of try_kernels().

    Raises:
        AssertionError: integers differ from a reference, or lie beyond a tolerance, or no operator could be tried; or a row names a kind
            that does not exist, and would stand for nothing.
    """
    runtime, name = kernels_named(kernels)
    unknown = {kind for row in runtime.rows(name).rows for kind in row.kinds} - KINDS.keys()
    assert not unknown, f"rows of {kernels} name kinds that do not exist: {quote_nearest(sorted(unknown), KINDS)}"
    refused: dict[str, str] = {}
    found = try_kernels(kernels, target, refused=refused, **options)
    reasons = "".join(f"\n{kind}: {reason}" for kind, reason in refused.items())
    assert found, f"{kernels} ran no operator that was written for {target if isinstance(target, str) else target.name}{reasons}"
    wrong = [f"{item.kind} of {item.dtype}: {item.differing} of {item.elements}, by {item.worst:.3g}" for item in found if item.differing]
    assert not wrong, f"{kernels} gives other integers than its rows say: {'; '.join(wrong)}"
    return found


def _assert_equal_outputs(before: Graph, after: Graph, what: str) -> None:
    """Inputs and outputs go by their order: a format may call them otherwise."""
    given = random_inputs(before)
    assert len(before.inputs) == len(after.inputs) and len(before.outputs) == len(after.outputs), f"{what}: other inputs or outputs"
    values = dict(zip(after.inputs, given.values(), strict=True))
    for mine, other in zip(evaluate(before, given).items(), evaluate(after, values).items(), strict=True):
        assert equal_data(mine[1], other[1]), f"{what}: the output {mine[0]!r} of {before.name!r} differs"


class _Made:
    """A graph while it is made, with random constants."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rng = np.random.default_rng(_SEED)
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []

    def tensor(self, name: str, dtype: str, shape: tuple[int, ...], q: Quantization | None = None, data: Array | None = None) -> str:
        self.tensors[name] = Tensor(name, dtype, shape, data, q)
        return name

    def weights(self, name: str, *shape: int) -> str:
        q = Quantization.per_axis(self.rng.uniform(0.01, 0.05, shape[0]), 0)
        return self.tensor(name, "int8", shape, q, np.asarray(self.rng.integers(-127, 128, shape), np.int8))

    def bias(self, name: str, data: str, weights: str) -> str:
        scales = self.tensors[data].quantization, self.tensors[weights].quantization
        assert scales[0] is not None and scales[1] is not None
        q = Quantization.per_axis(scales[0].scale * scales[1].scale, 0)
        return self.tensor(name, "int32", q.scale.shape, q, np.asarray(self.rng.integers(-3000, 3000, q.scale.shape), np.int32))

    def op(self, kind: str, inputs: str, output: str, **attributes: Any) -> None:
        self.ops.append(Op(kind, tuple(inputs.split()), (output,), attributes, f"{kind} #{len(self.ops)}"))

    def graph(self, *outputs: str) -> Graph:
        made = {name for op in self.ops for name in op.outputs}
        inputs = tuple(name for name, tensor in self.tensors.items() if not tensor.is_constant and name not in made)
        graph = Graph(self.name, self.tensors, tuple(self.ops), inputs, outputs)
        validate(graph)
        return graph


def _convolutions(dtype: str) -> Graph:
    """A convolution with relu6, a depthwise one, a sum with what was before it, an average and a Gemm, as MobileNets have."""
    made, middle = _Made(f"convolutions of {dtype}"), 0 if dtype == "int8" else 128

    def quantization(scale: float, point: int) -> Quantization:
        return Quantization.per_tensor(scale, point + middle)

    made.tensor("image", dtype, (1, 8, 8, 3), quantization(0.02, -1))
    made.op("Conv", f"image {made.weights('w1', 8, 3, 3, 3)} {made.bias('b1', 'image', 'w1')}", "c1", activation="relu6", **_window(3))
    made.tensor("c1", dtype, (1, 8, 8, 8), quantization(0.0235, -128))
    made.op("Conv", f"c1 {made.weights('w2', 8, 1, 3, 3)} {made.bias('b2', 'c1', 'w2')}", "c2", group=8, **_window(3))
    made.tensor("c2", dtype, (1, 8, 8, 8), quantization(0.05, 4))
    made.op("Add", "c1 c2", "sum")
    made.tensor("sum", dtype, (1, 8, 8, 8), quantization(0.06, -20))
    made.op("AveragePool", "sum", "mean", data_format="channels_last", kernel_shape=(8, 8), strides=(1, 1), pads=(0, 0, 0, 0))
    made.tensor("mean", dtype, (1, 1, 1, 8), quantization(0.06, -20))
    made.tensor("shape", "int64", (2,), None, np.array([1, 8], np.int64))
    made.op("Reshape", "mean shape", "flat")
    made.tensor("flat", dtype, (1, 8), quantization(0.06, -20))
    made.op("Gemm", f"flat {made.weights('w3', 4, 8)} {made.bias('b3', 'flat', 'w3')}", "scores")
    made.tensor("scores", dtype, (1, 4), quantization(0.1, 7))
    return made.graph("scores")


def _window(size: int) -> dict[str, Any]:
    return {"data_format": "channels_last", "pads": (size // 2,) * 4, "strides": (1, 1), "dilations": (1, 1)}


def _dense() -> Graph:
    """Two layers and a Softmax."""
    made = _Made("dense")
    made.tensor("x", "int8", (2, 6), Quantization.per_tensor(0.03, 5))
    made.op("Gemm", f"x {made.weights('w1', 5, 6)} {made.bias('b1', 'x', 'w1')}", "h", activation="relu")
    made.tensor("h", "int8", (2, 5), Quantization.per_tensor(0.04, -128))
    made.op("Gemm", f"h {made.weights('w2', 3, 5)} {made.bias('b2', 'h', 'w2')}", "logits")
    made.tensor("logits", "int8", (2, 3), Quantization.per_tensor(0.05, 2))
    made.op("Softmax", "logits", "y", axis=-1)
    made.tensor("y", "int8", (2, 3), Quantization.per_tensor(1 / 256, -128))
    return made.graph("y")


def _data_movement() -> Graph:
    """Integers that are only moved."""
    made, q = _Made("moves"), Quantization.per_tensor(0.1, 3)
    made.tensor("x", "int8", (1, 4, 6), q)
    made.op("Transpose", "x", "t", perm=(0, 2, 1))
    made.tensor("t", "int8", (1, 6, 4), q)
    made.op("Concat", "t t", "c", axis=1)
    made.tensor("c", "int8", (1, 12, 4), q)
    made.tensor("shape", "int64", (2,), None, np.array([12, 4], np.int64))
    made.op("Reshape", "c shape", "y")
    made.tensor("y", "int8", (12, 4), q)
    return made.graph("y")


def _pairs() -> Graph:
    """A real input that is quantized, a layer, and a real output."""
    made = _Made("pairs")
    made.tensor("x", "float32", (2, 6))
    made.op("Quantize", "x", "q")
    made.tensor("q", "int8", (2, 6), Quantization.per_tensor(0.02, -4))
    made.op("Gemm", f"q {made.weights('w', 3, 6)} {made.bias('b', 'q', 'w')}", "g")
    made.tensor("g", "int8", (2, 3), Quantization.per_tensor(0.04, 1))
    made.op("Dequantize", "g", "y")
    made.tensor("y", "float32", (2, 3))
    return made.graph("y")


def _float_graph() -> Graph:
    """Nothing quantized."""
    made = _Made("real")
    made.tensor("x", "float32", (2, 6))
    weights = made.tensor("w", "float32", (3, 6), None, made.rng.standard_normal((3, 6)).astype(np.float32))
    made.op("Gemm", f"x {weights}", "g")
    made.tensor("g", "float32", (2, 3))
    made.op("Relu", "g", "y")
    made.tensor("y", "float32", (2, 3))
    return made.graph("y")
