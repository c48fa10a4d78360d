"""Recurrent layers and cells: aten::lstm, gru, rnn_tanh, rnn_relu, their cells, and those of packed weights that round their data.

A layer is one operator for each of its depths, and for each direction where its weights are integers. PyTorch's gates stand in another
order than ONNX's: input, forget, cell, output of an LSTM, reset, update, new of a GRU. On CPUs PyTorch multiplies the data of the whole
sequence at once, so that those have one range, and the hidden values of a step with another (aten/src/ATen/native/RNN.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.formats.torch.ops.matrix import require_real, rounding_of
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.session import quantization_of
from qconvert.formats.torch.values import Packed, PackedCell
from qconvert.graph import Array, Quantization
from qconvert.operators.recurrent import CELLS, PROJECTION

#: Where the gates of ONNX stand among PyTorch's.
_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
_MOST_LAYERS = 2**10


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights of one direction: matrices for the data and for the hidden values with their quantizations, and both biases, gates as in
    ONNX.

    Attributes:
        matrices: (rows, inputs) and (rows, hidden), as they are stored.
        quantizations: of these; None for real ones.
        biases: of each, or None.
        names: of the matrices and of the biases in the file.
        rounding: how data are rounded next to integer weights; "" next to real ones.
        projection: (hidden, cells), what makes the hidden values of an LSTM with proj_size; its name stands after the others.
    """

    matrices: tuple[Array, Array]
    quantizations: tuple[Quantization | None, Quantization | None]
    biases: tuple[Array, Array] | None
    names: tuple[str, ...]
    rounding: str = ""
    projection: Array | None = None


def _reorder_gates(c: Reading, kind: str, values: Array) -> Array:
    """Rows of all gates in ONNX's order."""
    if values.ndim < 1 or values.shape[0] % CELLS[kind].gates or not values.shape[0]:
        raise c.invalid(f"weights of shape {values.shape} do not fit {CELLS[kind].gates} gates", rule="shape-mismatch")
    parts = np.split(values, CELLS[kind].gates)
    return np.concatenate([parts[place] for place in _ORDER[kind]])


def _reorder_quantization(c: Reading, kind: str, quantization: Quantization | None) -> Quantization | None:
    """A quantization of the rows of all gates in ONNX's order, along the axis after that of directions."""
    if quantization is None or quantization.axis is None:
        return quantization
    return Quantization(_reorder_gates(c, kind, quantization.scale), _reorder_gates(c, kind, quantization.zero_point), 1)


def _real_weights(c: Reading, kind: str, names: Sequence[str], projection: str = "") -> _Weights:
    """Of separate tensors: two matrices, and two biases or none."""
    found = [_reorder_gates(c, kind, _constant(c, name)) for name in names]
    biases = (found[2], found[3]) if len(found) == 4 else None
    projected = _constant(c, projection) if projection else None
    return _Weights((found[0], found[1]), (None, None), biases, (*names[:2], names[2] if biases else "", projection), "", projected)


def _constant(c: Reading, name: str) -> Array:
    data = c.known(name)
    if data is None or c.lookup(name).is_quantized:
        raise c.unsupported_error("weights that are computed at run time", rule="not-constant")
    return data


def _packed_weights(c: Reading, kind: str, packed: tuple[Packed, Packed], rounding: str) -> _Weights:
    """Of packed parameters: integers with their quantizations, or float16 as float32."""
    matrices, quantizations = [], []
    for part in packed:
        weight = part.weight
        if len(weight.shape) != 2 or weight.axis not in (None, 0):
            raise c.invalid(f"weights of shape {weight.shape} have scales along axis {weight.axis}", rule="shape-mismatch")
        data = _reorder_gates(c, kind, weight.data)
        matrices.append(data if weight.scales is not None else data.astype(np.float32))
        quantizations.append(_reorder_quantization(c, kind, quantization_of(weight, part.name)))
    if (quantizations[0] is None) != (quantizations[1] is None):
        raise c.invalid("some weights are integers and others are float", rule="contradicting-types")
    biases = [
        np.zeros(len(matrix), np.float32) if part.bias is None else _reorder_gates(c, kind, part.bias.data)
        for part, matrix in zip(packed, matrices, strict=True)
    ]
    names = (*(f"{part.name}.weight" for part in packed), f"{packed[0].name}.bias")
    return _Weights(
        (matrices[0], matrices[1]),
        (quantizations[0], quantizations[1]),
        (biases[0], biases[1]),
        names,
        rounding if quantizations[0] is not None else "",
    )


def _count_cells(c: Reading, kind: str, weights: _Weights, inputs: int | str | None) -> int:
    """The number of cells. Raises InvalidModelError if the weights do not fit each other or the data."""
    rows, hidden = len(weights.matrices[0]), len(weights.matrices[0]) // CELLS[kind].gates
    shapes = [matrix.shape for matrix in weights.matrices]
    width = hidden
    if weights.projection is not None:
        if weights.projection.ndim != 2 or weights.projection.shape[1] != hidden:
            raise c.invalid(f"a projection of shape {weights.projection.shape} does not fit {hidden} cells", rule="shape-mismatch")
        width = len(weights.projection)
    if len(shapes[0]) != 2 or shapes[1] != (rows, width) or (isinstance(inputs, int) and shapes[0][1] != inputs):
        raise c.invalid(f"weights of shape {shapes[0]} and {shapes[1]} do not fit {inputs} inputs", rule="shape-mismatch")
    if weights.biases is not None and any(bias.shape != (rows,) for bias in weights.biases):
        raise c.invalid(
            f"biases of shape {weights.biases[0].shape} and {weights.biases[1].shape} do not fit {rows} rows", rule="shape-mismatch"
        )
    return hidden


class _Layer:
    """One depth of a layer: its operators on a sequence.

    Args:
        c: the call.
        kind: LSTM, GRU or RNN.
        activation: of an RNN.
    """

    def __init__(self, c: Reading, kind: str, activation: str) -> None:
        self._c, self._kind, self._activation = c, kind, activation

    def run(self, data: str, directions: Sequence[_Weights], states: Sequence[str]) -> tuple[list[str], list[str]]:
        """Adds the operators.

        Args:
            data: (steps, rows, inputs).
            directions: the weights of each, one or two.
            states: first values, each of shape (directions, rows, cells), or none.

        Returns:
            What each direction gives for all steps, (steps, rows, cells), and the last states, (directions, rows, cells).
        """
        if len(directions) == 2 and all(weights.rounding == "" and weights.projection is None for weights in directions):
            whole, *last = self._operator(data, directions, states, "bidirectional")
            ways = (self._c.const(np.int64(index), "way") for index in (0, 1))
            return [self._c.emit("Gather", [whole, way], hint=hint, axis=1) for way, hint in zip(ways, _WAYS, strict=True)], last
        found = []
        for index, weights in enumerate(directions):
            own = states if len(directions) == 1 else [slice_first_axis(self._c, state, index, 1) for state in states]
            found.append(self._operator(data, [weights], own, _WAYS[index]))
        last = [_join(self._c, parts, "last", 0) for parts in zip(*(item[1:] for item in found), strict=True)]
        axes = (self._c.list64([1], "axes") for _ in found)
        return [self._c.emit("Squeeze", [item[0], each], hint="steps") for item, each in zip(found, axes, strict=True)], last

    def _operator(self, data: str, directions: Sequence[_Weights], states: Sequence[str], direction: str) -> list[str]:
        c, kind = self._c, self._kind
        hidden = {_count_cells(c, kind, weights, (c.lookup(data).shape or (None,))[-1]) for weights in directions}
        if len(hidden) != 1:
            raise c.invalid("the directions have different numbers of cells", rule="counts-differ")
        attributes: dict[str, Any] = {"hidden_size": hidden.pop(), "direction": direction}
        if kind == "GRU":
            attributes["linear_before_reset"] = 1
        if self._activation:
            attributes["activations"] = (self._activation,) * len(directions)
        if rounding := directions[0].rounding:
            attributes["arithmetic"] = rounding
        inputs = [data, *(self._matrix(directions, index) for index in (0, 1)), self._biases(directions)]
        inputs += ["", *states] if states else []
        if (projection := directions[0].projection) is not None:
            inputs += [""] * (PROJECTION - len(inputs))
            inputs.append(c.draft.variant(directions[0].names[3], "projection", projection[None], None))
        while not inputs[-1]:
            inputs.pop()
        return c.emit_several(
            kind, inputs, 1 + CELLS[kind].states, quantization=None, dtype=c.lookup(data).dtype, hint=direction, **attributes
        )

    def _matrix(self, directions: Sequence[_Weights], index: int) -> str:
        """The matrices of all directions, one above the other."""
        first, *others = directions
        data = np.stack([weights.matrices[index] for weights in directions])
        key = "/".join(["gates", *(weights.names[index] for weights in others)])
        return self._c.draft.variant(first.names[index], key, data, first.quantizations[index])

    def _biases(self, directions: Sequence[_Weights]) -> str:
        """The biases of all directions, those of the data before those of the hidden values."""
        first, *others = directions
        found = [np.concatenate(weights.biases) for weights in directions if weights.biases is not None]
        key = "/".join(["both", *(weights.names[2] for weights in others if weights.biases is not None)])
        return self._c.draft.variant(first.names[2], key, np.stack(found), None) if len(found) == len(directions) else ""


_WAYS = ("forward", "reverse")


def _join(c: Reading, names: Sequence[str], hint: str, axis: int) -> str:
    """Tensors one after the other; the one where there is one."""
    return names[0] if len(names) == 1 else c.emit("Concat", names, hint=hint, axis=axis)


def slice_first_axis(c: Reading, name: str, start: int, count: int) -> str:
    """`count` indices from `start` along the first axis."""
    bounds = [c.list64([value], hint) for value, hint in ((start, "first"), (start + count, "end"), (0, "axis"))]
    return c.emit("Slice", [name, *bounds], hint="part")


def _is_zero(c: Reading, name: str) -> bool:
    """Whether a tensor is 0 everywhere, whatever its sizes: what a recurrence begins with by itself."""
    known = c.known(name)
    if known is not None:
        return not known.any()
    maker = c.producer(name, "Expand", "Slice", "Transpose", "Concat", "Reshape")
    return maker is not None and _is_zero(c, maker.inputs[0])


def _states(c: Reading, values: Sequence[str], directions: int, layers: int) -> list[list[str]]:
    """First states for each depth; none where all are 0."""
    if all(_is_zero(c, name) for name in values):
        return [[] for _ in range(layers)]
    for name in values:
        shape = c.lookup(name).shape
        if shape is not None and (len(shape) != 3 or shape[0] != directions * layers):
            raise c.invalid(f"initial states of shape {shape} do not fit {layers} layers in {directions} directions", rule="shape-mismatch")
    if layers == 1:
        return [list(values)]
    return [[slice_first_axis(c, name, depth * directions, directions) for name in values] for depth in range(layers)]


def _require_plain(c: Reading) -> tuple[int, int]:
    """Layers and directions; raises what a layer in training, or one with too many layers, is."""
    layers, directions = c.integer("num_layers"), 2 if c["bidirectional"] else 1
    if not 1 <= layers <= _MOST_LAYERS:
        raise c.invalid(f"the number of layers is {layers}", rule="number-out-of-range")
    if c["train"] and c.number("dropout") > 0:
        error = c.unsupported_error("dropout in training mode", rule="training-mode")
        error.remedy = "Call eval() on the model before it is saved."
        raise error
    return layers, directions


def _weights_from_tensors(c: Reading, kind: str, layers: int, directions: int) -> list[_Weights]:
    """The weights of all depths and directions, of the list of tensors that a call gets."""
    values = c.names("params")
    own = 4 if c["has_biases"] else 2
    count = layers * directions
    if len(values) == (own + 1) * count and kind == "LSTM":
        parts = [values[index : index + own + 1] for index in range(0, len(values), own + 1)]
        return [_real_weights(c, kind, part[:-1], part[-1]) for part in parts]
    if len(values) != own * count:
        raise c.invalid(f"there are {len(values)} weights for {layers} layers in {directions} directions", rule="counts-differ")
    return [_real_weights(c, kind, values[index : index + own]) for index in range(0, len(values), own)]


def _weights_from_packed(c: Reading, kind: str, layers: int, directions: int) -> list[_Weights]:
    """The weights of packed parameters, one for each depth and direction."""
    values = list(c["params"])
    if len(values) != layers * directions or not all(isinstance(value, PackedCell) for value in values):
        raise c.invalid(f"there are {len(values)} packed weights for {layers} layers in {directions} directions", rule="counts-differ")
    return [_packed_weights(c, kind, (value.data, value.hidden), rounding_of(value.reduces)) for value in values]


@with_arguments
def read_layer(c: Reading, kind: str, activation: str = "", *, packed: bool = False) -> tuple[str, ...]:
    """aten::lstm, gru, rnn_tanh, rnn_relu, and aten::quantized_lstm, quantized_gru: (all steps, last hidden values, last cells)."""
    layers, directions = _require_plain(c)
    data = c.name()
    if packed:
        require_real(c, data)
    if c.rank() != 3:
        raise c.invalid(f"data of rank {c.rank('input')}", rule="wrong-rank")
    weights = (_weights_from_packed if packed else _weights_from_tensors)(c, kind, layers, directions)
    given = c.names("hx")
    if len(given) != CELLS[kind].states:
        raise c.invalid(f"the number of initial states is {len(given)}", rule="counts-differ")
    states = _states(c, given, directions, layers)
    if c["batch_first"]:
        data = c.emit("Transpose", [data], hint="steps_first", perm=(1, 0, 2))
    layer = _Layer(c, kind, activation)
    last: list[list[str]] = []
    for depth in range(layers):
        parts, ends = layer.run(data, weights[depth * directions : (depth + 1) * directions], states[depth])
        data = _join(c, parts, "both", 2)
        last.append(ends)
    result = c.emit("Transpose", [data], perm=(1, 0, 2)) if c["batch_first"] else c.emit("Identity", [data])
    return (result, *(_join(c, parts, "last", 0) for parts in zip(*last, strict=True)))


@with_arguments
def read_cell(c: Reading, kind: str, activation: str = "", *, packed: bool = False) -> tuple[str, ...] | str:
    """aten::lstm_cell, gru_cell, rnn_tanh_cell, rnn_relu_cell, and quantized::quantized_*_cell_dynamic: a sequence of one step.

    The latter always reduce the range of their data. They take the biases that are packed with the weights, whatever the call states
    besides: modules made of float ones state random numbers there.
    """
    data = c.name()
    if packed:
        require_real(c, data)
        parts = (c.packed_parameters("w_ih"), c.packed_parameters("w_hh"))
        weights = _packed_weights(c, kind, parts, rounding_of(True))
    else:
        names = [c.name(part) for part in _CELL_WEIGHTS if c[part] is not None]
        if len(names) == 3:
            raise c.unsupported_error("only one of two biases")
        weights = _real_weights(c, kind, names)
    given = c.names("hx")
    if c.rank() != 2 or len(given) != CELLS[kind].states:
        raise c.invalid(f"data of rank {c.rank('input')} and {len(given)} states", rule="wrong-rank")
    states = [] if all(_is_zero(c, name) for name in given) else [_emit_unsqueeze(c, name) for name in given]
    whole, last = _Layer(c, kind, activation).run(_emit_unsqueeze(c, data), [weights], states)
    found = tuple(
        c.emit("Squeeze", [name, c.list64([0], "axes")], hint=hint) for name, hint in zip((*whole, *last[1:]), _ENDS, strict=False)
    )
    return found if kind == "LSTM" else found[0]


_ENDS = ("hidden", "cell")
_CELL_WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh")


def _emit_unsqueeze(c: Reading, name: str) -> str:
    return c.emit("Unsqueeze", [name, c.list64([0], "axes")], hint="one")


def read_rows_of_several_lengths(c: Reading) -> str:
    """The overloads for packed sequences (torch.nn.utils.rnn.pack_padded_sequence)."""
    error = c.unsupported_error("rows of several lengths (a PackedSequence)")
    error.remedy = "Save the model with a tensor of rows of one length as its input."
    raise error


_LIST = "a params, b has_biases, i num_layers, f dropout, b train, b bidirectional"
_CELL = "T w_ih, T w_hh, T? b_ih=None, T? b_hh=None"
_PACKED_CELL = "o w_ih, o w_hh, T? b_ih, T? b_hh"


#: Layer -> its states, what reads it, and further arguments.
_LAYERS: Mapping[str, tuple[str, ReadFunction, str]] = {
    "lstm": ("t hx", read_layer("LSTM"), ""),
    "gru": ("T hx", read_layer("GRU"), ""),
    "rnn_tanh": ("T hx", read_layer("RNN"), ""),
    "rnn_relu": ("T hx", read_layer("RNN", "Relu"), ""),
    "quantized_lstm": ("t hx", read_layer("LSTM", packed=True), ", *, i? dtype=None, b use_dynamic=False"),
    "quantized_gru": ("T hx", read_layer("GRU", packed=True), ""),
}

OPERATORS: Mapping[str, ReadFunction] = {
    **{f"aten::{name}(T input, {states}, {_LIST}, b batch_first{more})": read for name, (states, read, more) in _LAYERS.items()},
    **{
        f"aten::{name}(T data, T batch_sizes, {states}, {_LIST}{more})": read_rows_of_several_lengths
        for name, (states, _, more) in _LAYERS.items()
    },
    f"aten::lstm_cell(T input, t hx, {_CELL})": read_cell("LSTM"),
    f"aten::gru_cell(T input, T hx, {_CELL})": read_cell("GRU"),
    f"aten::rnn_tanh_cell(T input, T hx, {_CELL})": read_cell("RNN"),
    f"aten::rnn_relu_cell(T input, T hx, {_CELL})": read_cell("RNN", "Relu"),
    f"quantized::quantized_lstm_cell_dynamic(T input, t hx, {_PACKED_CELL})": read_cell("LSTM", packed=True),
    f"quantized::quantized_gru_cell_dynamic(T input, T hx, {_PACKED_CELL})": read_cell("GRU", packed=True),
    f"quantized::quantized_rnn_tanh_cell_dynamic(T input, T hx, {_PACKED_CELL})": read_cell("RNN", packed=True),
    f"quantized::quantized_rnn_relu_cell_dynamic(T input, T hx, {_PACKED_CELL})": read_cell("RNN", "Relu", packed=True),
}
