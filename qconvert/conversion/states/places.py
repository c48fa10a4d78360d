"""Where the quantizations of modules stand in the graph: after which tensor.

Quantizations that a file lists in the order of the operators, without saying which operators these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from qconvert.conversion.states.network import Network, is_in_module, same_path
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError, OptionError, format_count, format_verb
from qconvert.graph import Op
from qconvert.graph.names import quote_nearest
from qconvert.operators import kind_of

#: Modules that are looked for among all operators.
_MOST = 1000
_REMEDY = (
    "Name the tensor of the graph that each module computes: --modules 'module=tensor; other=tensor'. Graphs that torch.export or "
    "torch.onnx.export wrote, and no other tool changed, name the modules of their operators."
)


class Places:
    """The tensors after which quantizations stand.

    Args:
        network: with the file's tensors in place.
        layers: result of an operator with weights -> its module.

    Attributes:
        following: tensor -> its quantization.
        inner: results of operators within a module of one quantization, which keep none by themselves.
        notes: what the user should know.
    """

    def __init__(self, network: Network, layers: Mapping[str, str]) -> None:
        self._network = network
        self.following: dict[str, QParams] = {}
        self.inner: set[str] = set()
        self.notes: list[str] = []
        self._taken: set[str] = set()
        self._layers: dict[str, list[str]] = {}
        self._module_of = dict(layers)
        for name, module in layers.items():
            self._layers.setdefault(module, []).append(name)
        self._of_scope: dict[str, list[Op]] = {}
        for op in network.ops:
            scope = network.scope(op)
            if scope is not None and not kind_of(op).dequantizes:
                self._of_scope.setdefault(scope, []).append(op)

    def run(self) -> None:
        """Places every quantization.

        Raises:
            InvalidModelError: modules whose operator is not to be found, or not told from others.
        """
        parameters = self._network.parameters
        self._place_inputs()
        self._place_data()
        left: dict[str, QParams] = {}
        for module, quantization in parameters.results.items():
            if not (
                self._place_by_option(module, quantization)
                # What operators in the module's code compute for each other is its own affair.
                or self._place_after(self._layers.get(module, []), quantization)
                or self._place_after(self._module_outputs(module), quantization)
            ):
                left[module] = quantization
        self._place_functions(left)

    def _place_by_option(self, module: str, quantization: QParams) -> bool:
        """Where the user says."""
        name = self._network.parameters.places.get(module)
        if name is None:
            return False
        tensors = self._network.graph.tensors
        if name not in tensors or tensors[name].is_constant:
            raise OptionError(f"--modules names no tensor that is computed: {quote_nearest([name], tensors)}", rule="unknown-tensor")
        self.put(name, quantization)
        return True

    def _place_after(self, names: list[str], quantization: QParams) -> bool:
        """After tensors, or a Relu after them; whether there are any."""
        for name in names:
            self.put_after_relu(name, quantization)
        return bool(names)

    def _module_outputs(self, module: str) -> list[str]:
        """What the operators in a module's code give to others; the rest is inner from now on."""
        ops = self._of_scope.get(module, [])
        own = {id(op) for op in ops}
        names = [name for op in ops for name in op.outputs if name and self._network[name].dtype == "float32"]
        public = self._network.graph.public
        ends = [name for name in names if name in public or any(id(op) not in own for op in self._network.consumers.get(name, []))]
        if ends:
            self.inner |= set(names) - set(ends)
        return ends

    def put_after_relu(self, name: str, quantization: QParams) -> None:
        """Puts a quantization after a tensor, or after the Relu that alone reads it: a quantization without negative values is one of both
        together."""
        reader = self._network.only_consumer(name, "Relu")
        lowest = quantization.quantization.limits(quantization.dtype)[0]
        if reader is not None and quantization.quantization.point == lowest:
            self.inner.add(name)
            self._taken.add(name)
            name = reader.name
        self.put(name, quantization)

    def put(self, name: str, quantization: QParams) -> None:
        """Puts a quantization after a tensor."""
        self.following[name] = quantization
        self._taken.add(name)

    def _place_inputs(self) -> None:
        network = self._network
        graph, stubs = network.graph, network.parameters.inputs
        wanted = [name for name in graph.inputs if graph[name].dtype == "float32"]
        left = {module: quantization for module, quantization in stubs.items() if not self._place_by_option(module, quantization)}
        free = [name for name in wanted if name not in self.following]
        if left and len(left) != len(free):
            raise InvalidModelError(
                f"{format_count(len(stubs), 'module', 'quantize inputs')} ({quote_nearest(left, graph.inputs)}); the graph has "
                f"{format_count(len(wanted), 'float input')}",
                remedy=_REMEDY,
                rule="input-count",
            )
        for name, quantization in zip(free, left.values(), strict=False):
            self.put(name, quantization)

    def _place_data(self) -> None:
        """After the data of modules that take float values in a quantized network: before the first operator of each."""
        if self._network.parameters.trained:
            return
        listed = self._network.parameters.data
        if len(listed) > _MOST:
            raise InvalidModelError(
                f"{format_count(len(listed), 'module', 'have')} quantization parameters of their data",
                remedy=_REMEDY,
                rule="module-not-found",
            )
        for path, quantization in listed.items():
            data = next((found for op in self._network.ops if self._is_in_module(op, path) and (found := self._network.data(op))), [])
            if not data:
                modules = {module for module in (*self._of_scope, *self._layers) if module}
                raise InvalidModelError(
                    f"a module has quantization parameters of its data, and the graph has no such module: {quote_nearest([path], modules)}",
                    remedy=_REMEDY,
                    rule="module-not-found",
                )
            self.following.setdefault(data[0], quantization)

    def _is_in_module(self, op: Op, path: str) -> bool:
        """Whether an operator stands in a module, in whose path "_" may stand for "."."""
        names = (self._network.scope(op), self._module_of.get(op.name) if op.outputs else None, self._network.owner(op))
        return not kind_of(op).dequantizes and any(name is not None and same_path(name) == same_path(path) for name in names)

    def outputs_of_path(self, path: str) -> list[str]:
        """What a module, in whose path "_" stands for ".", gives to others."""
        return [name for scope in self._of_scope if same_path(scope) == path for name in self._module_outputs(scope)]

    def _place_functions(self, left: dict[str, QParams]) -> None:
        """FloatFunctionals, which have no operators of their own: the one operator that fits, again and again, as fewer are left."""
        if len(left) > _MOST:
            raise InvalidModelError(
                f"{format_count(len(left), 'module')} with quantization parameters {format_verb(len(left), 'have')} no operators of "
                f"their own in the graph",
                remedy=_REMEDY,
                rule="module-not-found",
            )
        while left:
            found = {module: self._fitting_ops(module) for module in left}
            claimed = Counter(ops[0].name for ops in found.values() if len(ops) == 1)
            sure = {module: ops[0] for module, ops in found.items() if len(ops) == 1 and claimed[ops[0].name] == 1}
            sure = sure or self._match_by_number(found)
            if not sure:
                unused = [module for module in left if _is_unused(left[module])]
                if not unused:
                    raise self._unplaced_error(found)
                left = {module: quantization for module, quantization in left.items() if module not in unused}
            for module, op in sure.items():
                self.put_after_relu(op.name, left.pop(module))

    def _match_by_number(self, found: Mapping[str, list[Op]]) -> dict[str, Op]:
        """Modules called alike but for a number, as many as there are operators that fit each: in the order of their numbers."""
        groups: dict[str, list[str]] = {}
        for module in found:
            if module[-1:].isdecimal():
                groups.setdefault(module.rstrip("0123456789"), []).append(module)
        chosen: dict[str, Op] = {}
        for stem, modules in groups.items():
            ops = found[modules[0]]
            if len(modules) == len(ops) and all([id(op) for op in found[module]] == [id(op) for op in ops] for module in modules):
                ordered = sorted(modules, key=lambda module: (len(module), module))
                chosen.update(zip(ordered, ops, strict=True))
                self.notes.append(
                    f"{', '.join(ordered[:4])} are taken to be {', '.join(op.name for op in ops[:4])} of the graph, in the order of "
                    f"their numbers (--modules '{stem}…=tensor' names others)"
                )
        return chosen

    def _fitting_ops(self, module: str) -> list[Op]:
        """The operators that a module without operators of its own can be."""
        last, above = module.rpartition(".")[2], module.rpartition(".")[0]
        ops = [op for op in self._network.ops if self._is_free(op) and self._stands_in(op, above)]
        named = [op for op in ops if (function := self._network.function(op)) and function in last.lower()]
        return named or [op for op in ops if self._network.function(op) or self._network.scope(op) is None]

    def _is_free(self, op: Op) -> bool:
        """Whether an operator computes a float value of values, and no module is known to be it."""
        if not op.outputs or op.name in self._taken or op.name in self.inner or op.name in self._module_of:
            return False
        own_quantization = kind_of(op).rule == "real" and (not kind_of(op).keeps_range or kind_of(op).chooses)
        of_values = len(op.inputs) > 1 and all(self._network.constant(name) is None for name in op.inputs)
        return own_quantization and (not self._network.function(op) or of_values)

    def _stands_in(self, op: Op, module: str) -> bool:
        """Whether an operator stands in the code of a module: by its scope, else by the layers that lead to it."""
        scope = self._network.scope(op)
        if scope is not None:
            return scope == module
        if not module:
            return True
        owners = (self._module_of.get(before.name) for before in self._network.upstream(op))
        return any(is_in_module(owner, module) for owner in owners if owner is not None)

    def _unplaced_error(self, found: Mapping[str, list[Op]]) -> InvalidModelError:
        tensors = [name for op in self._network.ops for name in op.outputs if self._is_free(op)]
        lines = [
            f"\n    {module!r}: "
            + (_quote_candidates(op.name for op in ops) if ops else f"no tensor fits; {quote_nearest([module], tensors)}")
            for module, ops in list(found.items())[:20]
        ]
        more = f"\n    and {len(found) - 20} more" if len(found) > 20 else ""
        return InvalidModelError(
            f"the tensors that {format_count(len(found), 'module')} with quantization parameters {format_verb(len(found), 'compute')} "
            f"cannot be determined:{''.join(lines)}{more}",
            remedy=_REMEDY,
            rule="module-ambiguous",
        )

    def listed_ops(self, path: str) -> list[Op]:
        """The operators in the code of a module whose path has "_" for ".", in order; all where the file tells no modules."""
        scopes = [scope for scope in self._of_scope if same_path(scope) == path]
        if scopes or self._of_scope:
            return [op for op in self._network.ops if self._network.scope(op) in scopes]
        return list(self._network.ops)


def _is_unused(quantization: QParams) -> bool:
    """Whether a quantization is that of a module that never computed: PyTorch's FloatFunctionals have it from the start."""
    return quantization.quantization.step == 1.0 and quantization.quantization.point == 0


def _quote_candidates(names: Iterable[str]) -> str:
    some = [repr(name) for _, name in zip(range(7), names, strict=False)]
    return f"one of {', '.join(some[:6])}{' …' if len(some) > 6 else ''}"


_SAME_NETWORK = (
    "Give a graph of the same network and of the same version of its code. A TorchScript file of the quantized model "
    "(torch.jit.trace) holds everything."
)

_OF_TRAINING = (
    "A Dropout has an observer too, but no graph shows it. Save the model under training itself, which holds everything:\n"
    "    import torch\n"
    "    model.eval().apply(torch.ao.quantization.disable_observer)\n"
    "    torch.export.save(torch.export.export(model, example_inputs), 'model.pt2')"
)


def place_sequences(network: Network, places: Places) -> None:
    """Places the quantizations of functions: of a quantized network those without a module, of one in training every operator's.

    Raises:
        InvalidModelError: there are more or fewer quantizations than operators.
    """
    for path, quantizations in network.parameters.functions.items():
        if network.parameters.trained:
            _place_observed(network, places, quantizations)
        else:
            _place_functions(network, places, path, quantizations)


def _place_functions(network: Network, places: Places, path: str, quantizations: Sequence[QParams]) -> None:
    """The operators of a module's own code that need a quantization and have none yet take these in their order.

    A quantization equal to an earlier tensor's may belong to an operator that keeps its data's quantization; the result needs none then.
    """
    ends = places.outputs_of_path(path) if path and len(quantizations) == 1 else []
    if len(ends) == 1:
        places.put_after_relu(ends[0], quantizations[0])
        return
    ops = places.listed_ops(path)
    wanting = [op for op in ops if _needs_quantization(network, places, op)]
    left = _without_repeated(quantizations, places.following.values(), len(quantizations) - len(wanting))
    if len(left) != len(wanting):
        where = f"the module {path!r}" if path else "the network's own code"
        raise InvalidModelError(
            f"{len(quantizations)} pairs of scale and zero point are listed for operators in {where}, and {len(wanting)} operators "
            f"require one there: {', '.join(op.name for op in wanting[:8]) or 'none'}",
            remedy=_SAME_NETWORK,
            rule="module-count",
        )
    for op, quantization in zip(wanting, left, strict=True):
        places.put_after_relu(op.name, quantization)


def _without_repeated(quantizations: Sequence[QParams], known: Iterable[QParams], most: int) -> list[QParams]:
    """The quantizations without those that stand among known ones or before in the list, the first `most` of these."""
    seen = {_key(quantization) for quantization in known}
    kept = []
    for quantization in quantizations:
        key = _key(quantization)
        if key in seen and most > 0:
            most -= 1
        else:
            kept.append(quantization)
        seen.add(key)
    return kept


def _key(quantization: QParams) -> tuple[Hashable, ...]:
    return quantization.dtype, quantization.quantization.key


def _needs_quantization(network: Network, places: Places, op: Op) -> bool:
    """Whether an operator of values computes what no quantization of its data fits: sums and products of two values, activations, norms."""
    if not op.outputs or op.name in places.following or op.name in places.inner or kind_of(op).rule != "real":
        return False
    if kind_of(op).keeps_range or network.fixed(op) is not None or network[op.name].dtype != "float32":
        return False
    two = kind_of(op).affine is None or not any(network.constant(name) is not None for name in op.inputs)
    return two and bool(network.data(op))


def _place_observed(network: Network, places: Places, quantizations: Sequence[QParams]) -> None:
    """Places the observers of FX, for each operator that FX quantizes: first on its data without an observer, then on its result.

    An operator that keeps its data's quantization has the same observer once more, unless a concatenation shares one among its data: so it
    is seen whether the operators of the graph are those of the list.
    """
    left = list(reversed(quantizations))
    fused: set[str] = set()
    for op in network.ops:
        data = [name for name in network.data(op) if network[name].dtype == "float32"] if network.is_observed(op) else []
        if not data or op.name in fused:
            continue
        for name in data:
            if name not in places.following:
                places.put(name, _take_next(left, quantizations, op))
        name = _fused_result(network, op)
        fused.add(name)
        held, quantization = places.following[data[0]], _take_next(left, quantizations, op)
        kind = kind_of(op)
        keeps = not kind.chooses and (kind.keeps_range or (kind.affine is not None and len(data) == 1))
        if (
            keeps
            and _key(held) != _key(quantization)
            and not any(network.function(reader) == "cat" for reader in network.consumers.get(name, []))
        ):
            raise _observers_error(quantizations, op)
        places.put(name, quantization)
    if left:
        raise _observers_error(quantizations, None)


def _take_next(left: list[QParams], quantizations: Sequence[QParams], op: Op) -> QParams:
    if not left:
        raise _observers_error(quantizations, op)
    return left.pop()


def _fused_result(network: Network, op: Op) -> str:
    """The result of an operator with the Relu that was fused with it: FX has one observer for both."""
    return (network.only_consumer(op.name, "Relu") or op).outputs[0]


def _observers_error(quantizations: Sequence[QParams], op: Op | None) -> InvalidModelError:
    found = f"they do not fit the operators from {op} on" if op is not None else "some are left after the last operator"
    return InvalidModelError(
        f"{len(quantizations)} observers are listed in the order of the operators, and {found}",
        remedy=_OF_TRAINING,
        rule="observers-do-not-fit",
    )
