"""Puts the file's tensors in the place of the graph's constants, and drops normalizations that weights hold. Tensors that have no place,
and constants that stay stale, are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.conversion.states.network import Network, member, module_of, parts_of
from qconvert.errors import InvalidModelError, format_count
from qconvert.graph import Array, Op, Shape, Tensor
from qconvert.graph.names import quote_nearest
from qconvert.operators import kind_of
from qconvert.operators.sizes import swapped_weights
from qconvert.plugins import Decoding


def decode_weight(network: Network, stored: str, decoding: Decoding, source: str) -> tuple[str, list[Op]]:
    """The name of a stored weight decoded to float, and the operators that decode it.

    Args:
        network: gets the intermediate tensors.
        stored: the weight, [N, K], or [E, N, K] of several experts.
        decoding: the scales, and the table, offsets or factor.
        source: of the operators.
    """
    ops: list[Op] = []
    shape = network[stored].static_shape
    assert shape is not None
    parts = (*decoding.scales.shape, shape[-1] // decoding.scales.shape[-1])

    def constant(hint: str, values: Array) -> str:
        return network.add_constant(f"{stored}/{hint}", values)

    def add_op(kind: str, *inputs: str, sizes: Shape = shape, dtype: str = "float32", **attributes: int | str) -> str:
        return network.append(ops, kind, inputs, stored, sizes, dtype, source, **attributes)

    real = add_op("Dequantize", stored)
    if decoding.factor is not None:
        return add_op("Mul", real, constant("factor", np.array(decoding.factor, np.float32))), ops
    if decoding.table is not None:
        indices = add_op("Cast", real, dtype="int32", to="int32")
        real = add_op("Gather", constant("table", decoding.table), indices, axis=0)
        kind, hint, numbers = "Mul", "scales", decoding.scales
    else:
        kind, hint, numbers = "Add", "offsets", decoding.offsets if decoding.offsets is not None else np.zeros_like(decoding.scales)
    in_blocks = add_op("Reshape", real, constant("blocks", np.array(parts, np.int64)), sizes=parts)
    changed = add_op(kind, in_blocks, constant(hint, np.ascontiguousarray(numbers[..., None], dtype=np.float32)), sizes=parts)
    return add_op("Reshape", changed, constant("shape", np.array(shape, np.int64))), ops


#: What PyTorch calls the tensors of a module, and transformers those of experts.
_NAMES = ("weight", "bias", "running_mean", "running_var", "gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
_WITH_NORMS = (
    "Export the float model with its normalizations: torch.export.save(torch.export.export(float_model.eval(), example_inputs), "
    "'float.pt2'), or torch.onnx.export(…, dynamo=True, optimize=False)."
)


class Substitution:
    """The tensors of the file in the graph.

    Args:
        network: is changed.

    Attributes:
        used: names of tensors that have found their place.
        unknown: constants of the graph that the file should hold and does not, by name: what they are.
        layers: operator's result -> its module, of those with weights of the file.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self.used: set[str] = set()
        self.unknown: dict[str, str] = {}
        self.layers: dict[str, str] = {}
        self._tensors: dict[str, Tensor] = dict(network.known)
        self._made: dict[tuple[str, bool, Shape], str] = {}
        self._absent = set(network.parameters.absent)
        self._shared: dict[str, str] = {}

    def run(self) -> None:
        """Replaces what can be replaced."""
        self._fold()
        self._drop_norms()
        self._find_shared()
        ops = []
        for op in self._network.ops:
            ops += self._replace_constants(op)
        self._network.replace_ops(ops)

    def _fold(self) -> None:
        """Weights of modules that hold the normalization after them, with the epsilon that the graph says."""
        network = self._network
        following: dict[str, float] = {}
        for op in network.ops:
            owner = self._layer(op)
            if owner is not None and owner in network.parameters.folded:
                norm = network.only_consumer(op.name, "BatchNormalization")
                if norm is not None:
                    following[owner] = float(norm["epsilon"])
        lacking = [module for module, folding in network.parameters.folded.items() if folding.has_norm and module not in following]
        if lacking:
            raise InvalidModelError(
                f"{format_count(len(lacking), 'layer', 'hold')} the batch normalization that follows, whose epsilon is not in the graph "
                f"any more, because the graph folds it into weights: {quote_nearest(lacking, ())}",
                remedy=_WITH_NORMS,
                rule="normalization-missing",
            )
        for module, folding in network.parameters.folded.items():
            found = folding.tensors(following.get(module, 0.0))
            self._tensors.update(found)
            if member(module, "bias") not in found:
                self._absent.add(member(module, "bias"))

    def _layer(self, op: Op) -> str | None:
        """The module of an operator with weights, if the file holds them."""
        if not kind_of(op).has_weights:
            return None
        network = self._network
        scope = network.scope(op)
        for module in (scope, *(module_of(name) for name in op.inputs[1:] if name and network.constant(name) is not None)):
            if module is not None and (module in network.parameters.folded or member(module, "weight") in self._tensors):
                return module
        return None

    def _drop_norms(self) -> None:
        """Batch normalizations whose statistics the file does not hold, after a layer whose weights do."""
        network, renamed = self._network, {}
        ops: list[Op] = []
        for op in network.ops:
            before = network.producers.get(op.inputs[0]) if _has_statistics(op) else None
            if before is None or self._layer(before) is None or self._owner(op) is not None or network.only_consumer(op.inputs[0]) is None:
                ops.append(op)
                continue
            renamed[before.name] = op.name
        if renamed:
            network.replace_ops([op.with_names(renamed) for op in ops])

    def _owner(self, op: Op) -> str | None:
        owner = self._network.owner(op)
        return owner if owner is not None and member(owner, "running_mean") in self._tensors else None

    def _find_shared(self) -> None:
        """Matrices that the file has under the name of another operator which reads them: embeddings tied to the last layer."""
        for op in self._network.ops:
            owner = self._layer(op) or self._network.owner(op)
            for place, name in enumerate(op.inputs):
                tensor = self._network.constant(name)
                key = self._key(op, place, name, owner) if tensor is not None and tensor.rank == 2 else None
                if key is not None:
                    self._shared.setdefault(name, key)

    def _replace_constants(self, op: Op) -> list[Op]:
        """An operator with the file's tensors, and what dequantizes them."""
        network = self._network
        owner = self._layer(op) or network.owner(op)
        inputs = list(op.inputs)
        before: list[Op] = []
        for place, name in enumerate(op.inputs):
            if not name or network.constant(name) is None:
                continue
            key = self._key(op, place, name, owner)
            if key is None:
                self._miss(op, place, name)
                continue
            inputs[place] = self._put(op, place, name, key, before)
        if owner is not None and kind_of(op).has_weights:
            inputs = self._with_bias(op, inputs, owner)
            self.layers[op.name] = owner
        return [*before, replace(op, inputs=tuple(inputs))]

    def _key(self, op: Op, place: int, name: str, owner: str | None) -> str | None:
        """The name of the tensor in the file that a constant is."""
        part = parts_of(op).get(place)
        if owner is not None and part is not None:
            own = member(owner, part)
            runs_in_float = _normalizes_data(op) and name != own  # an operator of which others are made
            if own in self._tensors and not (runs_in_float and self._tensors[own].shape != self._network[name].shape):
                return own
        return name if name in self._tensors else self._shared.get(name)

    def _miss(self, op: Op, place: int, name: str) -> None:
        """Notes a constant that the file should hold: weights and statistics, and what is called like a parameter."""
        part = parts_of(op).get(place)
        tensor = self._network[name]
        is_called = name.rpartition(".")[2] in _NAMES and "." in name
        is_needed = part is not None and part != "bias" and place > 0 and not _normalizes_data(op)
        if (is_needed or (is_called and tensor.dtype == "float32")) and (self._layer(op) is None or part != "bias"):
            self.unknown.setdefault(name, f"{op}")

    def _put(self, op: Op, place: int, name: str, key: str, before: list[Op]) -> str:
        """A tensor of the file in the form that the operator takes; returns the name of its float values."""
        wanted = self._network[name]
        tensor = _fit_tensor(self._tensors[key], wanted, op, place, key)
        self.used.add(key)
        made = (key, kind_of(op).spreads, tensor.shape or ())
        known = self._made.get(made)
        if known is None:
            known = self._made[made] = self._add_tensor(tensor, key)
        decoding = self._network.parameters.decodings.get(key)
        if decoding is not None:
            real, ops = decode_weight(self._network, known, decoding, op.source)
            before += ops
            return real
        if not self._network[known].is_quantized:
            return known
        real = self._network.add(f"{known}/real", Tensor("", "float32", tensor.shape))
        before.append(op.derive("Dequantize", (known,), (real,)))
        return real

    def _add_tensor(self, tensor: Tensor, key: str) -> str:
        """The tensor under its own name, in the place of the constant that may have it."""
        taken = self._network.tensors.get(key)
        if taken is None and (key not in self._network.graph.tensors or self._network.graph[key].is_constant):
            self._network.tensors[key] = replace(tensor, name=key)
            return key
        return self._network.add(key, tensor)

    def _with_bias(self, op: Op, inputs: list[str], owner: str) -> list[str]:
        """A bias where the file has one and the graph none, or where the graph's is computed; none where the module has none."""
        key = member(owner, "bias")
        has = len(inputs) > 2 and bool(inputs[2])
        if key in self._tensors and key not in self.used:
            shape = self._network[op.inputs[1]].shape
            outputs = (shape or (0,))[0]
            wanted = Tensor(key, "float32", (outputs,))
            tensor = _fit_tensor(self._tensors[key], wanted, op, 2, key)
            self.used.add(key)
            return [*inputs[:2], self._add_tensor(tensor, key)]
        if has and key in self._absent:
            return inputs[:2]
        if has and key not in self._tensors and inputs[2] == op.inputs[2] and self._tensors[member(owner, "weight")].is_quantized:
            self.unknown.setdefault(op.inputs[2], f"{op}, whose weights the file holds")
        return inputs


def _has_statistics(op: Op) -> bool:
    """Whether an operator normalizes by the statistics of a training."""
    return "running_mean" in parts_of(op).values()


def _normalizes_data(op: Op) -> bool:
    """Whether an operator normalizes by statistics of its data, not by those of a training."""
    return kind_of(op).normalizes and not _has_statistics(op)


def _fit_tensor(tensor: Tensor, wanted: Tensor, op: Op, place: int, key: str) -> Tensor:
    """A tensor of the file as the operator takes it: outputs first, in the graph's real type.

    Raises:
        InvalidModelError: its shape is another than the graph's.
    """
    stated = tensor.shape
    if kind_of(op).spreads and place == 1:
        tensor = _outputs_first(tensor, int(op["group"]), key)
    if tensor.shape != wanted.shape:
        raise InvalidModelError(
            f"{key!r} has the shape {stated} in the file; the graph has {wanted.shape} in {op}",
            where=key,
            remedy="Export the graph from the code that the state_dict was made with.",
            rule="shape-mismatch",
        )
    if (
        not tensor.is_quantized
        and tensor.dtype != wanted.dtype
        and "float" in tensor.dtype
        and tensor.data is not None
        and "float" in wanted.dtype
    ):
        return replace(tensor, dtype=wanted.dtype, data=tensor.data.astype(np.dtype(wanted.dtype)))
    return tensor


def _outputs_first(tensor: Tensor, groups: int, key: str) -> Tensor:
    """Weights of a transposed convolution, I,O/groups,spatial, as O,I/groups,spatial."""
    data, quantization = tensor.data, tensor.quantization
    if data is None or data.ndim < 3 or data.shape[0] % groups:
        raise InvalidModelError(
            f"the weights have the shape {tensor.shape}, which does not fit a transposed convolution of {groups} groups",
            where=key,
            rule="group-count",
        )
    if quantization is not None and quantization.axis is not None:
        if quantization.axis != 1 or groups != 1:
            raise InvalidModelError(
                "scales are along the input channels; a transposed convolution requires them along the output channels",
                where=key,
                rule="channel-axis",
            )
        quantization = quantization.with_axis(0)
    turned = swapped_weights(data, groups)
    return replace(tensor, shape=turned.shape, data=turned, quantization=quantization)


_REMEDY = (
    "Give the float graph of the same network, with the names of its modules, as torch.export.save or torch.onnx.export writes it: "
    "no other tool must have simplified it."
)


def require_matched(network: Network, substitution: Substitution, name_in_file: Callable[[str], str]) -> None:
    """Raises InvalidModelError if a constant or a tensor is left that the other side lacks, and says which are near."""
    unknown = list(substitution.unknown)
    spare = [name for name in network.known if name not in substitution.used and _is_missed(network, network.known[name])]
    spare += [f"{name}.weight" for name in network.parameters.folded if name not in substitution.layers.values()]
    if not unknown and not spare:
        return
    parts = []
    keys = [name_in_file(name) for name in [*network.known, *(f"{name}.weight" for name in network.parameters.folded)]]
    if unknown:
        parts.append(
            f"{format_count(len(unknown), 'constant')} of the graph {'is' if len(unknown) == 1 else 'are'} not in the file: "
            f"{quote_nearest(unknown, keys)}"
        )
    if spare:
        constants = [tensor.name for tensor in network.graph.constants() if tensor.rank]
        parts.append(
            f"{format_count(len(spare), 'tensor')} of the file {'is' if len(spare) == 1 else 'are'} not in the graph: "
            f"{quote_nearest(map(name_in_file, spare), constants)}"
        )
    raise InvalidModelError("; ".join(parts), remedy=_REMEDY, rule="constants-unmatched")


def _is_missed(network: Network, tensor: Tensor) -> bool:
    """Whether a tensor that has no place would be missed: it is real or quantized, and no constant of the graph has its very values.

    Exporters compute constants of constants: a weight that has got further axes has its values still.
    """
    if tensor.data is None or (not tensor.is_quantized and "float" not in tensor.dtype):
        return False
    if tensor.is_quantized:
        return True
    flat = np.asarray(tensor.data).reshape(-1)
    return not any(
        other.data is not None and other.data.size == flat.size and _has_same_values(flat, other) for other in network.graph.constants()
    )


def _has_same_values(flat: np.ndarray, other: Tensor) -> bool:
    data = np.asarray(other.data)
    return np.array_equal(flat, data.reshape(-1)) or (data.ndim == 2 and np.array_equal(flat, data.T.reshape(-1)))
