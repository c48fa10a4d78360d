"""Lifts models of ONNX's opsets 1 to 6 to opset 7, the oldest that the read functions know.

Node by node, with the constants left where they are; what each operator was is in ONNX's changelog of operators (docs/Changelog.md).
onnx's version converter is no help here: it wants every shape stated, and drops what it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.onnx.inference import infer_shapes
from qconvert.formats.onnx.initializers import Files, inline
from qconvert.formats.onnx.model import DEFAULT_DOMAINS, Model, all_nodes, defined_names, replace_items, subgraphs
from qconvert.formats.onnx.proto import make_attribute, make_node
from qconvert.formats.onnx.signatures import signature
from qconvert.formats.onnx.verify import node_label
from qconvert.graph import Names

OLDEST_READ = 7


@dataclass(frozen=True, slots=True)
class _Lift:
    """What the lift of a node may use: its graph, the opset that it had, ranks and constants of the model by name, its files, and
    the nodes so far.

    Errors get the node from _lift_graph().
    """

    graph: Any
    version: int
    ranks: Mapping[str, int]
    constants: Mapping[str, Any]
    files: Files
    nodes: list[Any] = field(default_factory=list)

    def require_rank(self, name: str) -> int:
        if name not in self.ranks:
            reason = f"the rank of {name!r}, to which another value is broadcast in opset {self.version}, is unknown"
            raise UnsupportedError(reason, rule="unknown-rank")
        return self.ranks[name]

    def require_constant(self, name: str) -> np.ndarray[Any, Any]:
        if name not in self.constants:
            raise UnsupportedError(f"input {name!r} is computed at run time, which later opsets do not allow", rule="not-constant")
        return self.files.numpy(self.constants[name])

    def unsqueeze_operand(self, node: Any, after: int) -> None:
        """Adds a node that gives input 1 axes of size 1 after its own, as the input of `node` from now on."""
        name, rank = node.input[1], self.require_rank(node.input[1])
        if after:
            node.input[1] = Names(defined_names(self.graph)).fresh(f"{node.output[0]}/{name}")
            self.nodes.append(make_node("Unsqueeze", [name], [node.input[1]], axes=[*range(rank, rank + after)]))

    def add_constant(self, node: Any, data: np.ndarray[Any, Any]) -> None:
        name = Names(defined_names(self.graph)).fresh(f"{node.output[0]}/{node.op_type}")
        self.graph.initializer.extend(inline({name: data}))
        node.input.append(name)


def lift_opset(proto: Any, files: Files) -> None:
    """Makes a verified ModelProto without functions one of opset 7, if it is of an older one.

    Raises:
        UnsupportedError: a node means what no later opset says; the error names it.
    """
    found = [item for item in proto.opset_import if item.domain in DEFAULT_DOMAINS]
    version = min((item.version for item in found), default=OLDEST_READ)
    if version >= OLDEST_READ:
        return
    needs_ranks = any(
        node.op_type in ("PRelu", "Tile") or (_is_broadcast(node) and _attribute(node, "axis") is not None)
        for node in all_nodes(proto.graph.node)
    )
    model = _model_for_ranks(proto, files) if needs_ranks else Model(proto, files)
    ranks = {name: len(shape) for name, (_, shape) in model.graph.values.items() if shape is not None}
    _lift_graph(proto.graph, version, ranks, model.graph.constants, files)
    for item in found:
        item.version = OLDEST_READ


def _lift_graph(graph: Any, version: int, ranks: Mapping[str, int], constants: Mapping[str, Any], files: Files) -> None:
    lift = _Lift(graph, version, ranks, constants, files)
    for node in graph.node:
        for inner in subgraphs(node):
            _lift_graph(inner, version, ranks, {name: constants[name] for name in constants.keys() - defined_names(inner)}, files)
        if node.domain in DEFAULT_DOMAINS:
            known = (OLDEST_READ, _lift_broadcast) if _is_broadcast(node) else _LIFTS.get(node.op_type)
            try:
                if known is not None and version < known[0]:
                    known[1](node, lift)
            except QConvertError as error:
                error.where = error.where or node_label(node)
                raise
            if stated := signature(node.op_type, "", OLDEST_READ):  # what it lacks says nothing, once that is lifted
                _drop_attributes(node, *(item.name for item in node.attribute if item.name not in stated.attributes))
        lift.nodes.append(node)
    replace_items(graph.node, lift.nodes)


def _is_broadcast(node: Any) -> bool:
    """Whether an attribute says which axes of its first operand the second one has."""
    known = signature(node.op_type, "", OLDEST_READ - 1)
    return known is not None and {"axis", "broadcast"} <= known.attributes.keys()


def _lift_broadcast(node: Any, lift: _Lift) -> None:
    """The second operand covers the axes of the first from `axis` on; by default its last ones, as everywhere today."""
    axis = _attribute(node, "axis") if _attribute(node, "broadcast", 0) else None
    if axis is None:
        return
    rank, own = lift.require_rank(node.input[0]), lift.require_rank(node.input[1])
    axis += rank if axis < 0 else 0
    if not 0 <= axis <= rank - own:
        raise InvalidModelError(f"broadcasts {own} axes from axis {axis} on, of {rank}", rule="axis-out-of-range")
    lift.unsqueeze_operand(node, rank - axis - own)


def _lift_prelu(node: Any, lift: _Lift) -> None:
    """One slope for each channel."""
    if lift.ranks.get(node.input[1], 1) == 1:
        lift.unsqueeze_operand(node, max(lift.require_rank(node.input[0]) - 2, 0))


def _lift_batch_normalization(node: Any, lift: _Lift) -> None:
    if not _attribute(node, "is_test", 0) or len([name for name in node.output if name]) > 1:
        raise UnsupportedError("is_test is 0, the form for training, which normalizes by the statistics of the batch", rule="training-form")


def _lift_reshape(node: Any, lift: _Lift) -> None:
    shape = _attribute(node, "shape")
    if shape is None:
        raise InvalidModelError("states no shape", rule="attribute-missing")
    lift.add_constant(node, np.array(shape, np.int64))


def _lift_cast(node: Any, lift: _Lift) -> None:
    from onnx import TensorProto

    name = _attribute(node, "to", b"").decode("utf-8", "backslashreplace")
    if name.upper() not in TensorProto.DataType.keys():  # noqa: SIM118 - an enumeration of protobuf, no mapping
        raise InvalidModelError(f"casts to {name!r}, which is not a type", rule="unknown-type")
    _set_attributes(node, to=TensorProto.DataType.Value(name.upper()))


def _lift_pad(node: Any, lift: _Lift) -> None:
    _set_attributes(node, pads=list(_attribute(node, "paddings", ())))


def _lift_split(node: Any, lift: _Lift) -> None:
    if len(node.input) > 1:
        if node.input[1]:
            _set_attributes(node, split=[int(size) for size in lift.require_constant(node.input[1]).reshape(-1)])
        del node.input[1:]


def _lift_tile(node: Any, lift: _Lift) -> None:
    """So many tiles along one axis."""
    tiles, axis = (lift.require_constant(name).reshape(-1) for name in node.input[1:3])
    rank = lift.require_rank(node.input[0])
    if tiles.size != 1 or axis.size != 1 or not 0 <= int(axis[0]) < rank:
        raise InvalidModelError(f"has {tiles.size} counts of tiles along axis {axis.tolist()}, of {rank}", rule="counts-differ")
    repeats = np.ones(rank, np.int64)
    repeats[int(axis[0])] = int(tiles[0])
    del node.input[1:]
    lift.add_constant(node, repeats)


def _lift_upsample(node: Any, lift: _Lift) -> None:
    scales = [1.0, 1.0, _attribute(node, "height_scale"), _attribute(node, "width_scale")]
    mode = _attribute(node, "mode", b"nearest")
    _set_attributes(node, scales=scales, mode="linear" if mode == b"bilinear" else mode.decode("utf-8", "backslashreplace"))


def _lift_lp_pool(node: Any, lift: _Lift) -> None:
    power = _attribute(node, "p", 2.0)
    if power != round(power):
        raise UnsupportedError(f"its norm is of order {power:g}, which later opsets do not have", rule="attribute-not-covered")
    _set_attributes(node, p=int(power))


def _state_defaults(**defaults: Any) -> Callable[[Any, _Lift], None]:
    """States attributes whose defaults were other ones."""
    return lambda node, lift: _set_attributes(node, **{name: value for name, value in defaults.items() if _attribute(node, name) is None})


#: Operator -> the opset that gave it its meaning in opset 7, and the function that rewrites older nodes.
_LIFTS: dict[str, tuple[int, Callable[[Any, _Lift], None]]] = {
    "BatchNormalization": (7, _lift_batch_normalization),
    "Cast": (6, _lift_cast),
    "Concat": (4, _state_defaults(axis=1)),
    "GlobalLpPool": (2, _lift_lp_pool),
    "LpPool": (2, _lift_lp_pool),
    "PRelu": (7, _lift_prelu),
    "Pad": (2, _lift_pad),
    "Reshape": (5, _lift_reshape),
    "Selu": (6, _state_defaults(alpha=1.6732, gamma=1.0507)),
    "Split": (2, _lift_split),
    "Tile": (6, _lift_tile),
    "Upsample": (7, _lift_upsample),
}


def _model_for_ranks(proto: Any, files: Files) -> Model:
    """A copy with inferred shapes, in which every operator that broadcasts is an Identity: it has the shape of its first operand."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    for node in copy.graph.node:
        if _is_broadcast(node) or node.op_type in ("PRelu", "Tile", "BatchNormalization", "Dropout", "Cast"):
            node.op_type = "Identity"
            del node.input[1:], node.output[1:], node.attribute[:]
        elif node.op_type == "Upsample":
            _set_attributes(node, scales=[1.0, 1.0, _attribute(node, "height_scale", 1.0), _attribute(node, "width_scale", 1.0)])
    model = Model(copy, files)
    infer_shapes(model)
    return model


def _attribute(node: Any, name: str, default: Any = None) -> Any:
    from onnx import helper

    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def _drop_attributes(node: Any, *names: str) -> None:
    for position in reversed(range(len(node.attribute))):
        if node.attribute[position].name in names:
            del node.attribute[position]


def _set_attributes(node: Any, **values: Any) -> None:
    _drop_attributes(node, *values)
    node.attribute.extend(make_attribute(name, value) for name, value in values.items())
