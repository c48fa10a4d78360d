"""Programs as they are written: calls of operators on each other's results, and the torch.fx.GraphModule that PyTorch makes of them.
PyTorch itself is imported by torch_package() alone, when a program is put in a file or run; reading never touches it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import IN_BYTES, in_bytes
from qconvert.errors import MissingPackageError
from qconvert.formats.torch.stored_values import TorchType
from qconvert.graph import Array, Quantization


def _binary(operator: str) -> Callable[[Node, Any], Node]:
    """A method for one of Python's operators with two operands."""
    return lambda self, other: self.aten(operator, self, other)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value of a program. Sums, differences, products and quotients of nodes, and of nodes and numbers, are calls of aten's operators.

    Attributes:
        aten: adds a call of aten's operator to the program.
        operator: with its overload, such as "aten.add.Tensor", or "aten.relu" for the default one; "operator.add" for a function of
            Python's own on sizes. "" for an input or a constant.
        arguments, named: of the call, by position and by name: numbers, texts, None, TorchTypes, Nodes, and lists of these.
        name: of an input or a constant.
        data: of a constant.
        function: the Python function, for a call without a name in PyTorch; only in programs that are never written to a file.
    """

    aten: Callable[..., Node]
    operator: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    data: Array | None = None
    function: Callable[..., Any] | None = None

    __add__, __sub__, __mul__, __truediv__ = (_binary(f"{name}.Tensor") for name in ("add", "sub", "mul", "div"))

    @property
    def is_input(self) -> bool:
        """Whether it is an input of the program."""
        return not self.operator and self.data is None

    @property
    def number(self) -> bool:
        """Whether it is a size, a number that is known only at run time."""
        return self.operator.startswith(("operator.", "aten.sym_")) and self.operator != "operator.getitem"


def read_by(node: Node) -> Iterator[Node]:
    """The nodes in a node's arguments."""
    pending: list[Any] = [*node.arguments, *node.named.values()]
    while pending:
        value = pending.pop()
        if isinstance(value, Node):
            yield value
        elif isinstance(value, (list, tuple)):
            pending.extend(value)


def find_needed_nodes(nodes: Iterable[Node], outputs: Iterable[Node]) -> list[Node]:
    """The inputs, and the nodes that the outputs depend on, in the order of `nodes`."""
    listed = list(nodes)
    wanted = {id(node) for node in outputs}
    kept = []
    for node in reversed(listed):
        if node.is_input or id(node) in wanted:
            kept.append(node)
            wanted.update(id(item) for item in read_by(node))
    return kept[::-1]


#: The first version whose kernels round otherwise than arithmetic/torch_kernels.py; pyproject.toml has it too.
_UNMEASURED = (2, 14)

_REMEDY = (
    "Install it with: pip install 'qconvert[torch]'. The build without GPU libraries is much smaller: "
    "`pip install 'torch<2.14' --index-url https://download.pytorch.org/whl/cpu`"
)


def torch_package() -> Any:
    """The module torch, with the operators of quantized_decomposed registered.

    Raises:
        MissingPackageError: it is not installed, or cannot be imported here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch = import_module("torch")
            import_module("torch.ao.quantization.fx._decomposed")  # registers quantized_decomposed
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torch"
        state = "is not installed" if absent else f"cannot be imported: {error}"
        raise MissingPackageError(
            f"the package torch, which writes and runs PyTorch files, {state}", remedy=_REMEDY, rule="package-missing"
        ) from error
    return torch


def newer_version() -> str:
    """The version of PyTorch, if it is one whose roundings are not known; else ""."""
    version = str(torch_package().__version__)
    known = tuple(int(part) for part in version.split(".")[:2]) < _UNMEASURED
    return "" if known else version


def quantized_modules(fused: bool) -> Any:
    """The modules torch.ao.nn.quantized, or those with a Relu inside, torch.ao.nn.intrinsic.quantized."""
    torch_package()
    return import_module("torch.ao.nn.intrinsic.quantized" if fused else "torch.ao.nn.quantized")


#: Canonical storage types that PyTorch calls otherwise, or stores in another type.
_TYPES = {
    **IN_BYTES,
    "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2", "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2fnuz": "float8_e5m2fnuz",
}  # fmt: skip


class Module:
    """A torch.fx.GraphModule made of nodes.

    Args:
        nodes: in order; see nodes.needed().
        outputs: what it returns.

    Attributes:
        module: the GraphModule.
        made: node -> the torch.fx.Node that it became.
        buffers: node of a constant -> the name of its buffer.
    """

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> None:
        self._torch = torch_package()
        self.made: dict[Node, Any] = {}
        self.buffers: dict[Node, str] = {}
        self._taken: set[str] = set()
        graph = self._torch.fx.Graph()
        self.module = self._torch.fx.GraphModule({}, self._torch.fx.Graph())
        for node in nodes:
            self.made[node] = self._add_node(graph, node)
        graph.output(tuple(self.made[node] for node in outputs))
        self.module.graph = graph

    def _add_node(self, graph: Any, node: Node) -> Any:
        if node.is_input:
            made = graph.create_node("placeholder", node.name, name=node.name)
            made.target = made.name  # a parameter that is called as another one's value would be overwritten by that
            return made
        if node.data is not None:
            self.buffers[node] = name = self._free(node.name)
            self.module.register_buffer(name, self._constant(node))
            return graph.get_attr(name)
        arguments = tuple(self._argument(value) for value in node.arguments)
        named = {key: self._argument(value) for key, value in node.named.items()}
        return graph.call_function(node.function or self._function(node.operator), arguments, named)

    def _constant(self, node: Node) -> Any:
        """The tensor of a constant."""
        assert node.data is not None
        return tensor_of(node.data)

    def _free(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._taken or hasattr(self._torch.fx.GraphModule, name):
            name, count = f"{wanted}_{count}", count + 1
        self._taken.add(name)
        return name

    def _function(self, operator: str) -> Any:
        space, name, *overload = operator.split(".")
        if space == "operator":
            return getattr(importlib.import_module("operator"), name)
        return getattr(getattr(getattr(self._torch.ops, space), name), overload[0] if overload else "default")

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.made[value]
        if isinstance(value, TorchType):
            return torch_type(value.name)
        return [self._argument(item) for item in value] if isinstance(value, (list, tuple)) else value


def torch_type(name: str) -> Any:
    """PyTorch's type for a canonical storage type."""
    return getattr(torch_package(), _TYPES.get(name, name))


def tensor_of(data: Array) -> Any:
    """A tensor of PyTorch with a copy of the data."""
    torch = torch_package()
    data = in_bytes(data)
    name = data.dtype.name.replace("_", "") if data.dtype.name.startswith("float8") else data.dtype.name
    if not data.size:  # torch.export.save() takes no storage of numpy's without bytes
        return torch.empty(data.shape, dtype=torch_type(name))
    if data.dtype.kind == "V" or name == "bfloat16" or name.startswith("float8"):
        plain = torch.from_numpy(np.array(data, order="C").view(f"int{8 * data.dtype.itemsize}"))
        return plain.view(torch_type(name))
    return torch.from_numpy(np.array(data, order="C"))


def make_quantized_tensor(data: Array, quantization: Quantization) -> Any:
    """A quantized tensor of PyTorch. Scales along an axis are float64 there."""
    torch = torch_package()
    if quantization.axis is None:
        return torch._make_per_tensor_quantized_tensor(tensor_of(data), quantization.step, quantization.point)
    scales, points = tensor_of(quantization.scale.astype(np.float64)), tensor_of(quantization.zero_point.astype(np.int64))
    return torch._make_per_channel_quantized_tensor(tensor_of(data), scales, points, quantization.axis)
