"""Normalizations and Softmax."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import Op, conditions
from qconvert_openvino.container import Node
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing


def read_softmax(r: Reading) -> None:
    r.emit("LogSoftmax" if r.node.type == "LogSoftmax" else "Softmax", [r.value(0)], axis=r.integer("axis", "1"))


@conditions(lambda op, scope: "" if op.kind == "LogSoftmax" or op["beta"] == 1 else "Softmax has no beta")
def write_softmax(op: Op, w: Writing) -> None:
    data, axis = w.value(op.inputs[0]), int(op["axis"])
    if op.kind == "LogSoftmax":
        w.finish(op, w.op.log_softmax(data, axis))
        return
    w.finish(op, w.op.softmax(data, axis % data.get_partial_shape().rank.get_length()))


def read_batch_norm(r: Reading) -> None:
    """BatchNormInference: (data, gamma, beta, mean, variance) since opset5, (gamma, beta, data, …) before."""
    order = (0, 1, 2, 3, 4) if r.node.opset != "opset1" else (2, 0, 1, 3, 4)
    r.emit("BatchNormalization", [r.value(index) for index in order], epsilon=r.number("epsilon"), data_format="channels_first")


def write_batch_norm(op: Op, w: Writing) -> None:
    w.finish(op, w.op.batch_norm_inference(*w.inputs(op), float(op["epsilon"])))


def read_mvn(r: Reading) -> None:
    """MVN over the last axes, with a Multiply and an Add of constants of their sizes after it: a LayerNormalization."""
    rank = r.rank()
    axes = r.axes(1, rank)
    first = min(axes, default=0)
    shape = r.result.shape[first:]
    inside = r.text("eps_mode", "inside_sqrt").lower() == "inside_sqrt"
    if sorted(axes) != [*range(first, rank)] or not axes or not inside or not r.flag("normalize_variance", True) or -1 in shape:
        raise r.unsupported_error("over other than the last axes, of sizes that are known, with the variance")
    result, scale = _read_parameter(r, "Multiply", shape)
    names = [scale or r.draft.add(f"{r.node.name}/ones", "float32", shape, np.ones(shape, np.float32))]
    if scale:
        result, shift = _read_parameter(result, "Add", shape)
        names += [shift] if shift else []
    result.emit("LayerNormalization", [r.value(0), *names], axis=first - rank, epsilon=r.number("eps"))


def _read_parameter(r: Reading, kind: str, shape: tuple[int, ...]) -> tuple[Reading, str]:
    """Return the only layer that reads this one, with its float constant, if type and shape match; else this layer and ""."""
    node: Node | None = r.sole_reader()
    if node is None or node.type != kind or len(node.inputs) != 2:
        return r, ""
    following = Reading(r.draft, node)
    other = next((index for index in (0, 1) if following.source(index)[0] is not r.node), None)
    data = None if other is None else following.data(other)
    if data is None or data.dtype != np.float32 or data.size != np.prod(shape) or data.shape[-len(shape) :] != shape:
        return r, ""
    r.draft.done.add(node.id)
    return following, r.draft.add(f"{node.name}/parameter", "float32", shape, data.reshape(shape))


def write_layer_norm(op: Op, w: Writing) -> None:
    """MVN, Multiply and Add."""
    data = w.value(op.inputs[0])
    rank = data.get_partial_shape().rank.get_length()
    axes = w.numbers(range(int(op["axis"]) % rank, rank))
    found = w.op.mvn(data, axes, True, float(op["epsilon"]), "inside_sqrt")
    found = w.op.multiply(found, w.value(op.inputs[1]))
    w.finish(op, w.op.add(found, w.value(op.inputs[2])) if op.has(2) else found)


def read_normalize_l2(r: Reading) -> None:
    axes = r.axes(1, r.rank())
    if len(axes) != 1 or r.number("eps") > 1e-6:
        raise r.unsupported_error("over several axes, or with a large epsilon")
    r.emit("LpNormalization", [r.value(0)], axis=axes[0], p=2)


@conditions(lambda op, scope: "" if op["p"] == 2 else "its norm is not the Euclidean one")
def write_lp_norm(op: Op, w: Writing) -> None:
    w.finish(op, w.op.normalize_l2(w.value(op.inputs[0]), w.numbers([int(op["axis"])]), 1e-12, "max"))


READERS = {"Softmax": read_softmax, "SoftMax": read_softmax, "LogSoftmax": read_softmax, "BatchNormInference": read_batch_norm,
           "MVN": read_mvn, "NormalizeL2": read_normalize_l2}  # fmt: skip
WRITERS = {"Softmax": write_softmax, "LogSoftmax": write_softmax, "BatchNormalization": write_batch_norm,
           "LayerNormalization": write_layer_norm, "LpNormalization": write_lp_norm}  # fmt: skip
