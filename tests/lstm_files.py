"""TFLite files of one recurrent operator, made with the schema's own objects, for LiteRT's kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np

Array = np.ndarray
_TYPES = {"int8": 9, "uint8": 3, "int16": 7, "int32": 2, "float32": 0}
#: Builtin codes of the schema.
_LSTM, _SVDF = 44, 27


class File:
    """Tensors and one operator."""

    def __init__(self) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema = schema
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.buffers = [schema.BufferT()]
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []

    def tensor(
        self, name: str, shape: Any, dtype: str, quantization: tuple[float, int] | None, data: Array | None = None, state: bool = False
    ) -> int:
        found = self.schema.TensorT()
        found.name, found.shape, found.type, found.isVariable = name, list(shape), _TYPES[dtype], state
        if quantization is not None:
            found.quantization = self.schema.QuantizationParametersT()
            found.quantization.scale, found.quantization.zeroPoint = [quantization[0]], [quantization[1]]
        found.buffer = 0
        if data is not None:
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            found.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(found)
        return len(self.graph.tensors) - 1

    def finish(
        self,
        code: int,
        version: int,
        inputs: list[int],
        outputs: list[int],
        options: Any,
        kind: str,
        intermediates: Any = None,
        given: list[int] | None = None,
        shown: list[int] | None = None,
    ) -> bytes:
        """The file; `given` and `shown` are its inputs and outputs where these are not the operator's first and its own."""
        schema = self.schema
        operator, builtin = schema.OperatorT(), schema.OperatorCodeT()
        builtin.builtinCode = builtin.deprecatedBuiltinCode = code
        builtin.version = version
        operator.opcodeIndex, operator.inputs, operator.outputs, operator.intermediates = 0, inputs, outputs, intermediates
        operator.builtinOptionsType, operator.builtinOptions = getattr(schema.BuiltinOptions, kind), options
        self.graph.operators, self.graph.inputs, self.graph.outputs = [operator], given or inputs[:1], shown or outputs
        self.model.operatorCodes, self.model.subgraphs = [builtin], [self.graph]
        builder = flatbuffers.Builder(4096)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


@dataclass
class Lstm:
    """An int8 UNIDIRECTIONAL_SEQUENCE_LSTM with random weights."""

    seed: int = 0
    rows: int = 1
    steps: int = 6
    inputs: int = 5
    cells: int = 8
    outputs: int = 8
    time_major: bool = False
    has_input_gate: bool = True
    peephole: bool = False
    projection: bool = False
    norm: bool = False
    cell_power: int = -11
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    data: tuple[float, int] = (0.02, -3)
    state: tuple[float, int] = (0.008, 5)
    hidden: tuple[float, int] = (0.008, 5)
    output: tuple[float, int] = (0.008, 5)
    absent: int | None = None
    """Which of the intermediate tensors is absent (-1 in its place)."""
    cell: str = "int16"
    """The type of the cell, or "state", where it is the tensor of the hidden values."""

    def file(self) -> bytes:
        """The file, and its parts as attributes of `made`."""
        rng = np.random.default_rng(self.seed)
        f = File()
        self.made: dict[str, Any] = {}
        width = self.outputs if self.projection else self.cells

        def constant(name: str, shape: tuple[int, ...], dtype: str, scale: float, high: int) -> int:
            data = rng.integers(-high, high + 1, shape).astype(dtype)
            self.made[name] = data, float(np.float32(scale))
            return f.tensor(name, shape, dtype, (scale, 0), data)

        steps = (self.steps, self.rows) if self.time_major else (self.rows, self.steps)
        inputs = [f.tensor("data", (*steps, self.inputs), "int8", self.data)]
        gates = ["input", "forget", "cell", "output"]
        for gate in gates:
            has = gate != "input" or self.has_input_gate
            inputs.append(constant(f"{gate}/weights", (self.cells, self.inputs), "int8", rng.uniform(0.004, 0.03), 127) if has else -1)
        for gate in gates:
            has = gate != "input" or self.has_input_gate
            inputs.append(constant(f"{gate}/recurrent", (self.cells, width), "int8", rng.uniform(0.004, 0.03), 127) if has else -1)
        for gate in ("input", "forget", "output"):
            has = self.peephole and (gate != "input" or self.has_input_gate)
            inputs.append(constant(f"{gate}/peephole", (self.cells,), "int16", rng.uniform(2e-5, 1e-4), 20000) if has else -1)
        for gate in gates:
            has = gate != "input" or self.has_input_gate
            inputs.append(constant(f"{gate}/bias", (self.cells,), "int32", 1e-4, 5000) if has else -1)
        inputs.append(constant("projection/weights", (self.outputs, self.cells), "int8", 0.01, 127) if self.projection else -1)
        inputs.append(constant("projection/bias", (self.outputs,), "int32", 1e-4, 500) if self.projection else -1)
        inputs.append(f.tensor("state", (self.rows, width), "int16" if self.cell == "state" else "int8", self.state, state=True))
        kept = (2.0**self.cell_power, 0)
        inputs.append(inputs[-1] if self.cell == "state" else f.tensor("kept", (self.rows, self.cells), self.cell, kept, state=True))
        for gate in gates:
            has = self.norm and (gate != "input" or self.has_input_gate)
            inputs.append(constant(f"{gate}/norm", (self.cells,), "int16", rng.uniform(2e-5, 1e-4), 30000) if has else -1)
        between = []
        for gate in gates:
            scale = float(np.float32(rng.uniform(1e-4, 4e-4)))
            self.made[f"{gate}/scale"] = scale
            between.append(f.tensor(f"{gate}/sum", (0,), "int16" if self.norm else "float32", (scale, 0) if self.norm else None))
        between.append(f.tensor("hidden", (0,), "int8", self.hidden))
        if self.absent is not None:
            between[self.absent] = -1
        output = f.tensor("output", (*steps, width), "int8", self.output)
        options = f.schema.UnidirectionalSequenceLSTMOptionsT()
        options.fusedActivationFunction, options.cellClip, options.projClip = 4, self.cell_clip, self.proj_clip
        options.timeMajor = self.time_major
        return f.finish(_LSTM, 3, inputs, [output], options, "UnidirectionalSequenceLSTMOptions", between)


def svdf_file(
    seed: int = 0,
    rows: int = 1,
    inputs: int = 10,
    units: int = 6,
    rank: int = 1,
    memory: int = 5,
    bias: bool = True,
    output: tuple[float, int] = (0.01, -128),
    state: str = "int16",
    state_zero: int = 0,
    activation: int = 1,
) -> tuple[bytes, dict[str, Any]]:
    """An int8 SVDF with random weights, and its parts; with a state of int8 it is one for tflite-micro alone.

    Args:
        state_zero: the zero point of its state, which is its first value.
        activation: the fused one, a number of the schema; 1 is Relu.
    """
    rng = np.random.default_rng(seed)
    f = File()
    filters, is_wide = units * rank, state == "int16"
    high = 20000 if is_wide else 120
    made = {
        "feature": rng.integers(-127, 128, (filters, inputs)).astype("int8"),
        "time": rng.integers(-high, high + 1, (filters, memory)).astype(state),
        "bias": rng.integers(-20000, 20001, units).astype("int32") if bias else None,
        "scales": (0.03, 0.006, 1e-5, 0.002) if is_wide else (0.03, 0.006, 0.002, 0.4), "output": output,
    }  # fmt: skip
    data, feature, time, kept = made["scales"]
    places = [
        f.tensor("data", (rows, inputs), "int8", (data, 4)),
        f.tensor("feature", (filters, inputs), "int8", (feature, 0), made["feature"]),
        f.tensor("time", (filters, memory), state, (time, 0), made["time"]),
        f.tensor("bias", (units,), "int32", (kept * time, 0), made["bias"]) if bias else -1,
        f.tensor("state", (rows, filters * memory), state, (kept, state_zero), state=True),
    ]
    result = f.tensor("output", (rows, units), "int8", output)
    options = f.schema.SVDFOptionsT()
    options.rank, options.fusedActivationFunction = rank, activation
    return f.finish(_SVDF, 3, places, [result], options, "SVDFOptions"), made


def real_lstm_file(
    seed: int = 0,
    rows: int = 1,
    steps: int = 6,
    inputs: int = 5,
    cells: int = 8,
    time_major: bool = False,
    cell_clip: float = 0.0,
    peephole: bool = False,
    has_input_gate: bool = True,
    projection: bool = False,
    activation: int = 4,
    weights: str = "float32",
    old: bool = False,
    wrong: str = "",
) -> bytes:
    """A UNIDIRECTIONAL_SEQUENCE_LSTM of real data with random weights, which are large enough for a cell to come to its limit."""
    rng = np.random.default_rng(seed)
    f = File()

    def constant(name: str, *shape: int, given: bool = True) -> int:
        if not given:
            return -1
        shape = (*shape[:-1], shape[-1] + 1) if name == wrong else shape
        if weights == "int8" and len(shape) == 2:
            return f.tensor(name, shape, "int8", (0.01, 0), rng.integers(-127, 128, shape).astype("int8"))
        return f.tensor(name, shape, "float32", None, rng.normal(0, 0.6, shape).astype("float32"))

    order = (steps, rows) if time_major else (rows, steps)
    gates = {"input": has_input_gate, "forget": True, "cell": True, "output": True}
    places = [f.tensor("data", (*order, inputs), "float32", None)]
    places += [constant(f"{gate}/weights", cells, inputs, given=given) for gate, given in gates.items()]
    places += [constant(f"{gate}/recurrent", cells, cells, given=given) for gate, given in gates.items()]
    places += [constant(f"{gate}/peephole", cells, given=peephole and given) for gate, given in gates.items() if gate != "cell"]
    places += [constant(f"{gate}/bias", cells, given=given) for gate, given in gates.items()]
    places += [constant("projection/weights", cells, cells, given=projection), -1]
    places += [f.tensor(name, (rows, cells), "float32", None, state=True) for name in ("state", "kept")]
    output = f.tensor("output", (*order, cells), "float32", None)
    options = f.schema.UnidirectionalSequenceLSTMOptionsT()
    options.fusedActivationFunction, options.cellClip, options.timeMajor = activation, cell_clip, time_major
    return f.finish(_LSTM, 1, places + ([] if old else [-1] * 4), [output], options, "UnidirectionalSequenceLSTMOptions")
