"""Runs PyTorch's files in PyTorch.

Loading a file in PyTorch runs what the file says (torch.jit.load and torch.export.load both). By default PyTorch runs a
program that is rebuilt from the graph of our own reader; the reader runs nothing. "trusted" runs the file itself. A graph that cannot be
written for PyTorch is evaluated by the meaning of its operators, and the model says that PyTorch did not judge it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.conversion.loading import read_literal_graph
from qconvert.errors import InvalidGraphError, MissingPackageError, RuntimeRefusedError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.files import map_file
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.export.reader import program_entry
from qconvert.formats.torch.program import newer_version, tensor_of, torch_package
from qconvert.formats.torch.writer import live
from qconvert.graph import Array, Graph, numpy_dtype
from qconvert.graph.carried_states import parse_states
from qconvert.graph.metadata import STATES
from qconvert.kernels import KERNELS
from qconvert.passes.states import states_to_io
from qconvert.plugins import ModelFile, format_named
from qconvert.runtimes.packages import capture_stderr
from qconvert.runtimes.torch_engines import engine_of, use_engine, writers_of

#: Values of inputs in order -> those of outputs.
Function = Callable[[Sequence[Array]], Sequence[Array]]


_REBUILT = "PyTorch ran programs rebuilt from what was read of the file, which itself was not loaded"


class TorchModel:
    """A model of PyTorch.

    Args:
        graph: what the file holds, whose names inputs and outputs get.
        function: values of the inputs in order, as arrays -> those of the outputs.
        note: what a user should know of how it runs.
        unjudged: why this says nothing of PyTorch; "" if it does.
        again: gives the function as it is before the first run; None where runs change nothing.
        form, rebuilt: see plugins.LoadedModel.

    Attributes:
        inputs, outputs: name -> (dtype, shape), in order; a dynamic dimension is a string.
        note, unjudged, form, rebuilt: as above.
    """

    def __init__(
        self,
        graph: Graph,
        function: Function,
        note: str = "",
        unjudged: str = "",
        again: Callable[[], Function] | None = None,
        form: str = "",
        rebuilt: bool = False,
    ) -> None:
        self.inputs = {name: (graph[name].dtype, tuple(graph[name].shape or ())) for name in graph.inputs}
        self.outputs = {name: (graph[name].dtype, tuple(graph[name].shape or ())) for name in graph.outputs}
        self.note, self.unjudged = note, unjudged
        self.form, self.rebuilt = form, rebuilt
        self._function, self._again = function, again

    def reset(self) -> None:
        """The next run is the first of a sequence: buffers that runs change have their first values."""
        if self._again is not None:
            self._function = self._again()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once. Inputs and outputs are stored values by name."""
        found = self._function([np.asarray(inputs[name]) for name in self.inputs])
        return dict(zip(self.outputs, found, strict=True))


def open_model(file: ModelFile) -> TorchModel:
    """See plugins.Runtime; the kernels are "rebuilt" or "trusted"."""
    graph = read_literal_graph(file.path, format_named("torch"), file.options)
    engine = engine_of(graph)
    if file.kernels == "trusted":
        words = f"PyTorch loaded and ran the file as it is{f', by its engine {engine}' if engine else ''}"

        def fresh() -> Function:
            return wrap_module(load_module(file.path, engine), engine, graph)

        form = "the file itself" + (f", engine {engine}" if engine else "")
        return TorchModel(graph, fresh(), words + _newer_version_note(), again=fresh if graph.states else None, form=form)
    function, refused, again = stateful_program(graph, engine)
    words = _REBUILT + (f"; quantized operators ran by its engine {engine}" if engine else "") + _describe_faults(graph)
    form = "a program rebuilt from the file" + (f", engine {engine}" if engine else "")
    return TorchModel(
        graph, function, "" if refused else words + _newer_version_note(), refused, again, "evaluated, not run" if refused else form, True
    )


def _describe_faults(graph: Graph) -> str:
    """Say which operators PyTorch computes wrongly where it runs the file itself."""
    found: dict[str, list[str]] = {}
    for op in graph.ops:
        if fault := KERNELS["torch:rebuilt"].fault(graph, op):
            found.setdefault(fault, []).append(op.label)
    return "".join(f". Its own kernel {fault}: {', '.join(labels)}" for fault, labels in found.items())


def stateful_program(graph: Graph, engine: str) -> tuple[Function, str, Callable[[], Function] | None]:
    """Return what program() returns, for a graph with states, and what makes a function with their initial values; None without states.

    The states are inputs and outputs of the program, and are carried here.
    """
    plain, _ = states_to_io(graph, None)
    function, refused = program(plain, engine)
    if not graph.states:
        return function, refused, None
    states, count = parse_states(plain.metadata[STATES]), len(graph.outputs)

    def again() -> Function:
        values: list[Array] = [item.first for item in states]

        def step(inputs: Sequence[Array]) -> Sequence[Array]:
            found = function([*inputs, *values])
            values[:] = found[count:]
            return found[:count]

        return step

    return again(), refused, again


def _newer_version_note() -> str:
    """Return a note for a PyTorch newer than the measured versions; else ""."""
    version = newer_version()
    return f"; PyTorch {version} rounds otherwise in places than 2.13, whose roundings are expected" if version else ""


def program(graph: Graph, engine: str) -> tuple[Function, str]:
    """Return a graph's function, values of inputs in order -> values of outputs, and why it does not run in PyTorch; "" if it does.

    A graph that cannot be written for PyTorch is evaluated by the meaning of its operators.

    Args:
        graph: the graph.
        engine: whose kernels run its quantized operators; "" for PyTorch's arithmetic in float.
    """
    try:
        with warnings.catch_warnings(), use_engine(engine):
            warnings.simplefilter("ignore")
            return wrap_module(live(graph, instead=writers_of(engine)), engine), ""
    except (MissingPackageError, UnsupportedError) as error:
        said = f"not judged in PyTorch: {error.sentence}. The operators' meaning was evaluated instead"
        return (lambda values: _evaluate_graph(graph, values)), said


def _evaluate_graph(graph: Graph, values: Sequence[Array]) -> list[Array]:
    try:
        found = evaluate(graph, dict(zip(graph.inputs, values, strict=True)))
    except InvalidGraphError as error:  # as PyTorch refuses values whose sizes do not fit
        raise RuntimeRefusedError(error.reason, where=error.where, rule=error.rule) from error
    return [found[name] for name in graph.outputs]


def load_module(path: Path, engine: str) -> Any:
    """Load the file in PyTorch; this runs code in the file."""
    torch = torch_package()
    content = io.BytesIO(bytes(map_file(path)))
    try:
        with warnings.catch_warnings(), use_engine(engine), capture_stderr():
            warnings.simplefilter("ignore")
            if program_entry(Archive(path)):
                return torch.export.load(content).module()
            return torch.jit.load(content, map_location="cpu")
    except Exception as error:  # PyTorch's errors share no base class but Exception
        raise RuntimeRefusedError(
            f"PyTorch does not load the file: {str(error).strip()[:300]}", file=str(path), rule="model-refused"
        ) from error


def wrap_module(module: Any, engine: str, graph: Graph | None = None) -> Callable[[Sequence[Array]], list[Array]]:
    """Return the function of a module: arrays of its inputs in order -> arrays of all tensors in its result.

    The function raises RuntimeRefusedError where PyTorch fails.

    Args:
        module: the module.
        engine: whose kernels run its quantized operators.
        graph: what our reader found in the module's file; None for a module that takes a plain tensor for each input.
    """

    def call(values: Sequence[Array]) -> list[Array]:
        with run_in_torch(engine):
            given = as_tensors(values)
            found = module(*(given if graph is None else arguments(module, graph, given)))
        return [as_array(value) for value in _flatten(found)]

    return call


@contextmanager
def run_in_torch(engine: str) -> Iterator[None]:
    """Run a module in the block, without gradients and warnings; raise RuntimeRefusedError where PyTorch fails."""
    try:
        with torch_package().no_grad(), warnings.catch_warnings(), use_engine(engine):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # as above
        raise RuntimeRefusedError(f"PyTorch failed while running the model: {str(error).strip()[:300]}", rule="run-failed") from error


def as_tensors(values: Iterable[Array]) -> list[Any]:
    """Return arrays as plain tensors of PyTorch."""
    return [tensor_of(value) for value in values]


def arguments(module: Any, graph: Graph, given: Sequence[Any]) -> list[Any]:
    """Return the arguments of a module loaded by PyTorch: quantized tensors, and tensors in lists, tuples and dictionaries.

    Args:
        module: the module.
        graph: what our reader found in its file; tensors in the argument x are called x_0, or x_key.
        given: a plain tensor for each input of the graph, in order.
    """
    torch = torch_package()
    if not isinstance(module, torch.jit.ScriptModule):
        return list(given)
    body = module.inlined_graph
    labelled = {next(node.inputs()).debugName() for node in body.findAllNodes("aten::_make_per_tensor_quantized_tensor")}
    plain = {
        argument.name
        for argument, value in zip(module.forward.schema.arguments, body.inputs(), strict=False)
        if value.debugName() in labelled
    }
    values = []
    for name, value in zip(graph.inputs, given, strict=True):
        quantization = graph[name].quantization
        if quantization is not None and name not in plain:  # integers to which the program itself gives a scale are plain
            value = torch._make_per_tensor_quantized_tensor(value, quantization.step, quantization.point)
        values.append(value)
    left = dict(zip(graph.inputs, values, strict=True))

    def take_argument(name: str, kind: Any) -> Any:
        if name in left:
            return left.pop(name)
        names = [key for key in left if key.startswith(f"{name}_")]
        if kind.kind() == "TupleType":
            return tuple(take_argument(f"{name}_{index}", element) for index, element in enumerate(kind.elements()))
        if kind.kind() == "DictType":
            return {key.removeprefix(f"{name}_"): left.pop(key) for key in names}
        return [left.pop(key) for key in names] if kind.kind() == "ListType" else None

    found = []
    for argument in module.forward.schema.arguments[1:]:
        value = take_argument(argument.name, argument.type)
        found.append(argument.default_value if value is None and argument.has_default_value() else value)
    return values if left else found


def _flatten(value: Any) -> list[Any]:
    """Return the tensors in a module's result, in the order of our reader."""
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in _flatten(item)]
    return [tensor for item in value for tensor in _flatten(item)] if isinstance(value, (list, tuple)) else [value]


def as_array(value: Any) -> Array:
    """Return a tensor as a numpy array; a quantized one as its stored integers."""
    tensor = (value.int_repr() if value.is_quantized else value).detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):  # numpy has them by ml_dtypes
        plain = tensor.contiguous().view(getattr(torch_package(), f"int{8 * tensor.element_size()}"))
        return np.asarray(plain.numpy().view(numpy_dtype(name.replace("_", ""))))
    return np.asarray(tensor.numpy())
