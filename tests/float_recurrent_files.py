"""TFLite files of one recurrent operator on float32, for LiteRT's kernels: LSTM and RNN, of one step or a sequence, one way or both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lstm_files import File

Array = np.ndarray
NONE, RELU, RELU_N1_TO_1, RELU6, TANH, SIGN_BIT = range(6)
_CODES = {"LSTM": 16, "RNN": 24, "UNIDIRECTIONAL_SEQUENCE_RNN": 35, "UNIDIRECTIONAL_SEQUENCE_LSTM": 44,
          "BIDIRECTIONAL_SEQUENCE_RNN": 46, "BIDIRECTIONAL_SEQUENCE_LSTM": 52}  # fmt: skip
_GATES = ("input", "forget", "cell", "output")


@dataclass
class Cells:
    """What the cells of a layer are; weights are random, and large enough for limits to matter.

    Attributes:
        ways: 1, or 2 for a layer that goes both ways.
        other: the way back, where its cells are not those of the way forth.
        aux: the size of an auxiliary input; 0 for none.
        aux_weights: whether it has weights of its own; without them it is the data of the way back.
        wrong: the name of a constant that is one too long.
        weights: their type; int8 for a kernel that rounds rows, which has peepholes and a projection of int8 too.
        lowest: the lowest integer weight.
        reach: factor of integer weights; with large ones a last bit grows from step to step.
    """

    seed: int = 0
    rows: int = 1
    steps: int = 6
    inputs: int = 5
    cells: int = 8
    outputs: int = 0
    ways: int = 1
    time_major: bool = False
    merge: bool = False
    aux: int = 0
    aux_weights: bool = True
    has_input_gate: bool = True
    peephole: bool = False
    norm: bool = False
    projection_bias: bool = True
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    activation: int = TANH
    other: dict[str, Any] | None = None
    wrong: str = ""
    weights: str = "float32"
    asymmetric: bool = False
    lowest: int = -127
    reach: float = 1.0

    @property
    def width(self) -> int:
        return self.outputs or self.cells

    @property
    def back(self) -> Cells:
        return replace(self, **(self.other or {}))


class _Layer:
    def __init__(self, made: Cells) -> None:
        self.made, self.file = made, File()
        self._rng = np.random.default_rng(made.seed)

    def constant(self, name: str, *shape: int, given: bool = True) -> int:
        if not given:
            return -1
        shape = (*shape[:-1], shape[-1] + 1) if name == self.made.wrong else shape
        if self.made.weights == "int8" and name.endswith(("weights", "recurrent", "peephole", "aux")):
            data = self._rng.integers(self.made.lowest, 128, shape).astype("int8")
            return self.file.tensor(name, shape, "int8", (self.made.reach * self._rng.uniform(0.004, 0.012), 0), data)
        return self.file.tensor(name, shape, "float32", None, self._rng.normal(0, 0.6, shape).astype("float32"))

    def state(self, name: str, *shape: int) -> int:
        return self.file.tensor(name, shape, "float32", None, state=True)

    def steps(self, name: str, size: int) -> int:
        order = (self.made.steps, self.made.rows) if self.made.time_major else (self.made.rows, self.made.steps)
        return self.file.tensor(name, (*order, size), "float32", None)

    def lstm(self, way: str, of: Cells) -> list[int]:
        """Weights, peepholes, biases and projection of one way."""
        gates = {"input": of.has_input_gate, "forget": True, "cell": True, "output": True}
        found = [self.constant(f"{way}{gate}/weights", of.cells, of.inputs, given=given) for gate, given in gates.items()]
        found += [self.constant(f"{way}{gate}/recurrent", of.cells, of.width, given=given) for gate, given in gates.items()]
        seen = {gate: of.peephole and given for gate, given in gates.items() if gate != "cell"}
        found += [self.constant(f"{way}{gate}/peephole", of.cells, given=given) for gate, given in seen.items()]
        found += [self.constant(f"{way}{gate}/bias", of.cells, given=given) for gate, given in gates.items()]
        found += [self.constant(f"{way}projection/weights", of.outputs, of.cells, given=bool(of.outputs))]
        return [*found, self.constant(f"{way}projection/bias", of.outputs, given=bool(of.outputs) and of.projection_bias)]

    def lstm_states(self, way: str, of: Cells) -> list[int]:
        return [self.state(f"{way}state", of.rows, of.width), self.state(f"{way}kept", of.rows, of.cells)]

    def shown(self, made: Cells) -> list[int]:
        if made.ways == 1:
            return [self.steps("output", made.width)]
        if made.merge:
            return [self.steps("output", made.width + made.back.width)]
        return [self.steps("output", made.width), self.steps("output_back", made.back.width)]


def lstm_file(made: Cells, single: bool = False) -> bytes:
    """UNIDIRECTIONAL_SEQUENCE_LSTM, BIDIRECTIONAL_SEQUENCE_LSTM, or LSTM, the operator of one step, with data of shape (rows, inputs)."""
    layer = _Layer(made)
    f = layer.file
    data = f.tensor("data", (made.rows, made.inputs), "float32", None) if single else layer.steps("data", made.inputs)
    if made.ways == 1:
        places = [data, *layer.lstm("", made), *layer.lstm_states("", made)]
        gates = list(_GATES)
        places += [layer.constant(f"{g}/norm", made.cells, given=made.norm and (g != "input" or made.has_input_gate)) for g in gates]
        options = f.schema.LSTMOptionsT() if single else f.schema.UnidirectionalSequenceLSTMOptionsT()
        _say(options, made)
        if single:
            output = f.tensor("output", (made.rows, made.width), "float32", None)
            return f.finish(_CODES["LSTM"], 1, places, [output], options, "LSTMOptions")
        options.timeMajor = made.time_major
        return f.finish(_CODES["UNIDIRECTIONAL_SEQUENCE_LSTM"], 1, places, layer.shown(made), options, "UnidirectionalSequenceLSTMOptions")
    ways = {"forth/": made, "back/": made.back}
    places = [data, *(place for way, of in ways.items() for place in layer.lstm(way, of))]
    places += [place for way, of in ways.items() for place in layer.lstm_states(way, of)]
    aux = layer.steps("aux", made.aux) if made.aux else -1
    places.append(aux)
    for way, of in ways.items():
        given = bool(made.aux) and made.aux_weights
        gates_given = {gate: given and (gate != "input" or of.has_input_gate) for gate in _GATES}
        places += [layer.constant(f"{way}{gate}/aux", of.cells, made.aux, given=given) for gate, given in gates_given.items()]
    options = f.schema.BidirectionalSequenceLSTMOptionsT()
    _say(options, made)
    options.timeMajor, options.mergeOutputs = made.time_major, made.merge
    given = [data, aux] if made.aux else None
    return f.finish(
        _CODES["BIDIRECTIONAL_SEQUENCE_LSTM"], 1, places, layer.shown(made), options, "BidirectionalSequenceLSTMOptions", given=given
    )  # fmt: skip


def _say(options: Any, made: Cells) -> None:
    options.fusedActivationFunction, options.cellClip, options.projClip = made.activation, made.cell_clip, made.proj_clip
    options.asymmetricQuantizeInputs = made.asymmetric


def basic_lstm_file(made: Cells) -> bytes:
    """LSTM with the kernel "basic": weights of all gates in one, for data and hidden values together."""
    layer = _Layer(made)
    f, rows, cells, total = layer.file, made.rows, made.cells, made.inputs + made.cells
    data = f.tensor("data", (rows, made.inputs), "float32", None)
    weights, bias = layer.constant("weights", 4 * cells, total), layer.constant("bias", 4 * cells)
    places = [data, layer.state("state", rows, cells), weights, bias, layer.state("kept", rows, cells)]
    sizes = {"output": cells, "cell": cells, "joined": total, "sums": 4 * cells}
    outputs = [f.tensor(name, (rows, size), "float32", None) for name, size in sizes.items()]
    options = f.schema.LSTMOptionsT()
    _say(options, made)
    options.kernelType = 1
    return f.finish(_CODES["LSTM"], 2, places, outputs, options, "LSTMOptions", shown=outputs[:1])


def integer_basic_lstm_file(
    seed: int = 0, rows: int = 1, inputs: int = 5, cells: int = 8, zero_point: int = 120, scale: float = 0.008, cell_scale: float = 2.0**-11
) -> tuple[bytes, dict[str, Any]]:
    """LSTM with the kernel "basic" of uint8 data and an int16 cell, and its parts."""
    rng = np.random.default_rng(seed)
    f, total = File(), inputs + cells
    steps = float(np.float32(scale) / np.float32(128))
    made = {"weights": rng.integers(0, 256, (4 * cells, total)).astype("uint8"), "zero_point": zero_point,
            "bias": rng.integers(-20000, 20001, 4 * cells).astype("int32"), "bias_scale": steps}  # fmt: skip
    quantization, cell = (1 / 128, 128), (cell_scale, 0)
    places = [
        f.tensor("data", (rows, inputs), "uint8", quantization),
        f.tensor("state", (rows, cells), "uint8", quantization, state=True),
        f.tensor("weights", made["weights"].shape, "uint8", (scale, zero_point), made["weights"]),
        f.tensor("bias", made["bias"].shape, "int32", (steps, 0), made["bias"]),
        f.tensor("kept", (rows, cells), "int16", cell, state=True),
    ]
    outputs = [
        f.tensor("output", (rows, cells), "uint8", quantization),
        f.tensor("cell", (rows, cells), "int16", cell),
        f.tensor("joined", (rows, total), "uint8", quantization),
        f.tensor("sums", (rows, 4 * cells), "int16", (2.0**-12, 0)),
    ]
    options = f.schema.LSTMOptionsT()
    options.fusedActivationFunction, options.kernelType = TANH, 1
    return f.finish(_CODES["LSTM"], 2, places, outputs, options, "LSTMOptions", shown=outputs[:1]), made


def rnn_file(made: Cells, single: bool = False) -> bytes:
    """UNIDIRECTIONAL_SEQUENCE_RNN, BIDIRECTIONAL_SEQUENCE_RNN, or RNN, the operator of one step, with data of shape (rows, inputs)."""
    layer = _Layer(made)
    f = layer.file

    def way(name: str, of: Cells) -> list[int]:
        found = [layer.constant(f"{name}weights", of.cells, of.inputs), layer.constant(f"{name}recurrent", of.cells, of.cells)]
        return [*found, layer.constant(f"{name}bias", of.cells), layer.state(f"{name}state", of.rows, of.cells)]

    data = f.tensor("data", (made.rows, made.inputs), "float32", None) if single else layer.steps("data", made.inputs)
    if single:
        options = f.schema.RNNOptionsT()
        options.fusedActivationFunction = made.activation
        output = f.tensor("output", (made.rows, made.cells), "float32", None)
        return f.finish(_CODES["RNN"], 1, [data, *way("", made)], [output], options, "RNNOptions")
    options = f.schema.SequenceRNNOptionsT() if made.ways == 1 else f.schema.BidirectionalSequenceRNNOptionsT()
    options.fusedActivationFunction, options.timeMajor = made.activation, made.time_major
    if made.ways == 1:
        return f.finish(_CODES["UNIDIRECTIONAL_SEQUENCE_RNN"], 1, [data, *way("", made)], layer.shown(made), options, "SequenceRNNOptions")
    options.mergeOutputs = made.merge
    aux = layer.steps("aux", made.aux) if made.aux else -1
    given = bool(made.aux) and made.aux_weights
    places = [data, *way("forth/", made), *way("back/", made.back), aux]
    places += [layer.constant(f"{name}aux", of.cells, made.aux, given=given) for name, of in (("forth/", made), ("back/", made.back))]
    return f.finish(
        _CODES["BIDIRECTIONAL_SEQUENCE_RNN"], 1, places, layer.shown(made), options, "BidirectionalSequenceRNNOptions",
        given=[data, aux] if made.aux else None,
    )  # fmt: skip


def operators_of(content: bytes) -> list[str]:
    """The builtin operators of a file's first subgraph."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content)
    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
    return [names[model.operatorCodes[operator.opcodeIndex].builtinCode] for operator in model.subgraphs[0].operators]
