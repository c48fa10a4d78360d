"""The graph of a network without quantization: its linear layers, the modules that its operators are of, and how names of modules are
compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.encodings import QParams
from qconvert.graph import Array, Attribute, Graph, Op, Producers, Shape, Tensor
from qconvert.operators import kind_of
from qconvert.plugins import Folding, Parameters, pass_named
from qconvert.rewriting import Rewriter, dequantized_source

_MOST_PREFIXES = 64
#: Tensors that lead to an operator, of which the nearest are looked at.
_MOST_UPSTREAM = 400


def module_of(name: str) -> str:
    """The module of a tensor: "features.0" of "features.0.weight"."""
    return name.rpartition(".")[0]


def member(module: str, name: str) -> str:
    """The name of a tensor of a module; the network's own module has the name ""."""
    return f"{module}.{name}".removeprefix(".")


def is_in_module(module: str, other: str) -> bool:
    """Whether a module is another or stands in it."""
    return not other or module == other or module.startswith(f"{other}.")


def same_path(path: str) -> str:
    """A path in which "_" stands for "." too, as in the names of attributes that FX makes."""
    return path.replace(".", "_")


def align_prefixes(parameters: Parameters, known: set[str]) -> tuple[Parameters, Callable[[str], str]]:
    """The parameters without a prefix missing in the graph's names, such as "module." of a wrapper, and with a prefix missing in the file.

    Args:
        parameters: of the file.
        known: the modules that the graph's names tell.

    Returns:
        The parameters by the graph's names, and what gives a name of the graph as the file has it.
    """
    modules = {module_of(name) for name in parameters.tensors} | set(parameters.folded)
    lacking, extra = _best_prefix(modules, known), "" if modules & known else _best_prefix(known, modules)
    without = sum(_cut_prefix(module, lacking) in known for module in modules)
    if without <= max(sum(module in known for module in modules), sum(f"{extra}{module}" in known for module in modules) if extra else 0):
        lacking = ""
    if lacking:
        return rename_parameters(parameters, lambda name: _cut_prefix(name, lacking)), lambda name: f"{lacking}{name}"
    if extra:
        return rename_parameters(parameters, lambda name: f"{extra}{name}" if name else name), lambda name: _cut_prefix(name, extra)
    return parameters, lambda name: name


def _cut_prefix(name: str, prefix: str) -> str:
    return "" if f"{name}." == prefix else name.removeprefix(prefix)


def _best_prefix(names: Iterable[str], known: Iterable[str]) -> str:
    """The prefix without which most names are known; the shortest of the best."""
    listed, others = set(names), set(known)
    prefixes = {name[: place + 1] for name in listed for place, letter in enumerate(name) if letter == "."} | {f"{n}." for n in listed if n}
    few = sorted(prefixes, key=lambda prefix: (prefix.count("."), prefix))[:_MOST_PREFIXES]
    scores = {prefix: sum(_cut_prefix(name, prefix) in others for name in listed if f"{name}.".startswith(prefix)) for prefix in few}
    best = max(scores.values(), default=0)
    return next((prefix for prefix in few if scores[prefix] == best), "") if best else ""


def rename_parameters(parameters: Parameters, new: Callable[[str], str]) -> Parameters:
    """Return the parameters with other names of tensors and modules."""
    names = ("results", "inputs", "data", "functions", "dynamic", "orders", "factors", "rounded", "decodings", "places")
    renamed: dict[str, Any] = {name: {new(key): value for key, value in getattr(parameters, name).items()} for name in names}
    return replace(
        parameters,
        tensors={new(name): replace(tensor, name=new(name)) for name, tensor in parameters.tensors.items()},
        absent=frozenset(map(new, parameters.absent)),
        folded={new(name): _renamed_folding(folding, new) for name, folding in parameters.folded.items()},
        **renamed,
    )


def _renamed_folding(folding: Folding, new: Callable[[str], str]) -> Folding:
    def tensors(epsilon: float) -> Mapping[str, Any]:
        return {new(name): replace(tensor, name=new(name)) for name, tensor in folding.tensors(epsilon).items()}

    return Folding(tensors, folding.has_norm)


#: How PyTorch calls the constants of a normalization, in the order of an operator's inputs.
_OF_NORMS = ("weight", "bias", "running_mean", "running_var")
#: How it calls those of other modules, by their role for the operator.
_OF_PRODUCTS = {"weights": "weight", "factor": "weight", "bias": "bias"}
_OF_OTHERS: Mapping[str, Mapping[int, str]] = {"PRelu": {1: "weight"}, "Gather": {0: "weight"}}
_REPEATED = re.compile(r"_\d+$")


def parts_of(op: Op) -> Mapping[int, str]:
    """How PyTorch calls the constants of the module that an operator is, by their places among its inputs."""
    kind = kind_of(op)
    if kind.normalizes:
        return dict(enumerate(_OF_NORMS[: len(kind.roles) - 1], 1))
    if kind.sums_products:
        return {place: _OF_PRODUCTS[role] for place, role in enumerate(kind.roles) if role in _OF_PRODUCTS}
    return _OF_OTHERS.get(op.kind, {})


class Network:
    """A graph that is changed step by step.

    Args:
        graph: without quantization.
        scopes: tensor -> the module that computes it, where the file says so.
        parameters: by the names of the graph.

    Attributes:
        ops: the operators as they are now.
        tensors: those that are new or changed.
        own: names of the modules that the parameters are of.
    """

    def __init__(self, graph: Graph, scopes: Mapping[str, str], parameters: Parameters) -> None:
        self.graph, self.scopes, self.parameters = graph, scopes, parameters
        self.ops: list[Op] = list(graph.ops)
        self.tensors: dict[str, Tensor] = {}
        self.names = graph.names(self.tensors)
        modules = [*parameters.folded, *parameters.results, *parameters.data, *parameters.dynamic]
        self.own = frozenset([*(module_of(name) for name in parameters.tensors), *modules])
        self._consumers: dict[str, list[Op]] | None = None
        self._producers: Producers | None = None

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors.get(name) or self.graph[name]

    def constant(self, name: str) -> Tensor | None:
        """A tensor if it is a constant."""
        found = self[name] if name else None
        return found if found is not None and found.is_constant else None

    def scope(self, op: Op) -> str | None:
        """The module in whose code an operator stands; None if the file does not say.

        A module that is called again has a number after its name in some files.
        """
        found = next((self.scopes[name] for name in op.outputs if name in self.scopes), None)
        if found is not None and found not in self.own and _REPEATED.sub("", found) in self.own:
            return _REPEATED.sub("", found)
        return found

    def owner(self, op: Op) -> str | None:
        """The module with tensors that an operator with constants is: by its scope, or by the names of the constants."""
        scope = self.scope(op)
        parts = parts_of(op)
        if scope is not None and any(member(scope, part) in self.known for part in parts.values()):
            return scope
        for place in parts:
            name = op.inputs[place] if place < len(op.inputs) else ""
            if name in self.known:
                return module_of(name)
        return None

    @property
    def known(self) -> Mapping[str, Tensor]:
        """The tensors that the file holds, by name; those that are to be folded come in once they are."""
        return self.parameters.tensors

    @property
    def consumers(self) -> Mapping[str, list[Op]]:
        """The operators that read each tensor."""
        if self._consumers is None:
            found: dict[str, list[Op]] = {}
            for op in self.ops:
                for name in filter(None, op.inputs):
                    found.setdefault(name, []).append(op)
            self._consumers = found
        return self._consumers

    @property
    def producers(self) -> Producers:
        """The operator that computes each tensor."""
        if self._producers is None:
            self._producers = Producers((name, op) for op in self.ops for name in op.outputs if name)
        return self._producers

    def replace_ops(self, ops: list[Op]) -> None:
        """Takes other operators."""
        self.ops, self._consumers, self._producers = ops, None, None

    def only_consumer(self, name: str, *kinds: str) -> Op | None:
        """The one operator that reads a tensor which nothing else sees, of one of `kinds` if these are given; None if there is none."""
        readers = self.consumers.get(name, [])
        if len(readers) != 1 or name in self.graph.public:
            return None
        return readers[0] if not kinds or readers[0].kind in kinds else None

    def fixed(self, op: Op) -> QParams | None:
        """The one quantization that quantized results of an operator have, whatever its data are; None if it has no such."""
        return self.parameters.fixed.get(op.kind)

    def is_observed(self, op: Op) -> bool:
        """Whether the list of a network in training has a quantization of an operator's result."""
        return op.kind in self.parameters.observed_kinds

    def function(self, op: Op) -> str:
        """The function of PyTorch that an operator of two values is in the code of a module, such as "add"; "" if it is none."""
        return self.parameters.function_names.get(op.kind, "")

    def add(self, name: str, tensor: Tensor) -> str:
        """Takes a new tensor in under a free name; returns it."""
        fresh = self.names.fresh(name)
        self.tensors[fresh] = Tensor(fresh, tensor.dtype, tensor.shape, tensor.data, tensor.quantization)
        return fresh

    def add_constant(self, name: str, values: Array) -> str:
        """Takes a new constant in under a free name; returns it."""
        return self.add(name, Tensor("", str(values.dtype), values.shape, values))

    def append(
        self,
        ops: list[Op],
        kind: str,
        inputs: Sequence[str],
        hint: str,
        shape: Shape | None,
        dtype: str = "float32",
        source: str = "",
        **attributes: Attribute,
    ) -> str:
        """Appends an operator of one result to `ops`; returns the result, which is named after `hint` and the kind."""
        result = self.add(f"{hint}/{kind.lower()}", Tensor("", dtype, shape))
        ops.append(Op(kind, tuple(inputs), (result,), attributes, source))
        return result

    def data(self, op: Op) -> list[str]:
        """The data inputs of an operator that are neither constants nor dequantized weights."""
        return [name for name in kind_of(op).data(op) if self.constant(name) is None and self.dequantized_constant(name) is None]

    def dequantized_constant(self, name: str) -> Tensor | None:
        """The constant that a Dequantize makes a tensor of; None if it is something else."""
        return self.constant(dequantized_source(self.producers, name))

    def upstream(self, op: Op) -> Iterator[Op]:
        """The operators that lead to one, the nearest first."""
        waiting, seen = list(op.inputs), set(op.inputs)
        while waiting and len(seen) <= _MOST_UPSTREAM:
            before = self.producers.get(waiting.pop(0))
            if before is None:
                continue
            yield before
            new = [name for name in before.inputs if name and name not in seen]
            seen.update(new)
            waiting += new


def with_linear_layers(graph: Graph) -> Graph:
    """The graph with a Gemm for each product with a matrix of constants; a matrix keeps the name under which it is stored."""
    return pass_named("matmul_to_gemm").run(_with_named_weights(graph), None)[0]


def _with_named_weights(graph: Graph) -> Graph:
    """A product with a transposed constant as one that says that its weights are turned."""
    rewriter, turned = Rewriter(graph), set[int]()
    for op in rewriter:
        is_plain = "trans_b" in kind_of(op).attributes and not op["trans_b"]
        before = rewriter.producers.find(op.inputs[1], "Transpose") if is_plain else None
        if before is not None and before["perm"] == (1, 0) and graph[before.inputs[0]].is_constant:
            rewriter.replace(op, op.with_input(1, before.inputs[0]).with_attributes(trans_b=1))
            turned.add(id(before))
    return rewriter.finish(prune=lambda op: id(op) in turned)
