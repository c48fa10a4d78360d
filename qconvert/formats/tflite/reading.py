"""What an operator's read function sees: its inputs, outputs and options, and ways to add canonical operators."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic.polynomials import Polynomial, from_number, multiply_polynomials, number, subtract_polynomials
from qconvert.arithmetic.storage import REALS
from qconvert.formats.reading.draft import Draft, OperatorReading
from qconvert.formats.tflite.functions import Functions
from qconvert.formats.tflite.schema import FUSED_ACTIVATIONS
from qconvert.formats.tflite.variables import Variables, first_value
from qconvert.graph import Array, Attribute, Graph, Op, Quantization, Shape, Tensor, numpy_dtype
from qconvert.graph.activations import ACTIVATIONS
from qconvert.operators import KINDS
from qconvert.operators.sizes import is_compatible
from qconvert.operators.values import Value
from qconvert.rewriting.lowering import Emission, Symbol


class Reading(OperatorReading):
    """One TFLite operator that is being read.

    Attributes:
        name: the builtin operator's name, or that of the custom operator.
        source: name and position, such as "CONV_2D #12".
        inputs: names of its input tensors; "" for an absent one.
        outputs: names of its output tensors.
        version: of the operator, from the file.
        custom_options: the bytes that a custom operator carries.
        options: its table of options, or None.
        variables, functions: those of the model.
        intermediates: names of tensors that carry the quantizations of what it computes inside.
    """

    def __init__(
        self,
        draft: Draft,
        name: str,
        index: int,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        options: Any,
        version: int,
        custom_options: bytes,
        variables: Variables,
        functions: Functions,
        intermediates: tuple[str, ...],
    ) -> None:
        super().__init__(draft, name, f"{name} #{index}", inputs, outputs)
        self.options = options
        self.name = name
        self.version = version
        self.custom_options = custom_options
        self.variables, self.functions = variables, functions
        self.intermediates = intermediates

    def option(self, name: str, default: Any = 0) -> Any:
        """A field of the operator's option table, such as "strideH"; `default` if the file has no table."""
        if self.options is None:
            return default
        try:
            return getattr(self.options, name)
        except AttributeError:
            raise self.invalid(f"its options are {self.options.table}, which do not belong to it", rule="invalid-options") from None

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers in the operator's option table; raises InvalidModelError if the file has none."""
        found = self.option(name, None)
        if found is None or np.ndim(found) != 1:
            raise self.invalid(f"its options have no {name}", rule="option-missing")
        return tuple(int(value) for value in found)

    def activation(self) -> str:
        """The fused activation as the canonical `activation` attribute."""
        code = self.option("fusedActivationFunction")
        if not 0 <= code < len(FUSED_ACTIVATIONS):
            raise self.unsupported_error(f"fused activation number {code}", rule="activation-not-covered")
        return FUSED_ACTIVATIONS[code]

    def function(self, subgraph: int, given: Sequence[Tensor], results: Sequence[Tensor]) -> str:
        """The function of a subgraph, with the quantizations of the tensors outside that go in and come out."""
        where = self._where()
        return self.functions.fit_quantizations(self.functions.function_name(subgraph, self.draft, where), given, results, where)

    def body(self, subgraph: int) -> Graph:
        """A subgraph that defines the arithmetic of the operator; it is no function of the network."""
        return self.functions.graph(subgraph, self.draft, self._where())

    def result_shapes(self, function: str) -> list[Shape | None]:
        """The shapes that a function gives."""
        graph = self.draft.functions[function]
        return [graph[name].shape for name in graph.outputs]

    def read_state(self, state: Tensor, result: Tensor) -> str:
        """Adds the value of a state as the tensor `result`: the same stored integers, under its own scales. Returns its name."""
        self.draft.states[state.name] = state
        same = result.quantization == state.quantization
        name = result.name if same else self.draft.add(f"{result.name}/stored", state.dtype, state.shape, None, state.quantization)
        self.draft.append(Op("ReadState", (), (name,), {"state": state.name}, self.source))
        return name if same else self._relabel(name, result.name)

    def write_state(self, state: Tensor, value: str) -> None:
        """Makes the stored integers of the tensor `value` the value of a state."""
        self.draft.states[state.name] = state
        stored = self.reinterpret(value, state.quantization)
        self.draft.append(Op("WriteState", (stored,), (), {"state": state.name}, self.source))

    def emit_with_states(
        self,
        kind: str,
        inputs: Sequence[Any],
        results: Sequence[str],
        states: Mapping[str, int],
        shapes: Sequence[tuple[int, ...] | None] = (None, None),
        **attributes: Attribute,
    ) -> None:
        """Appends an operator that keeps some of its inputs from one run to the next.

        Args:
            kind, attributes: as emit() has them.
            inputs: names; a number is the value of that input of the file's operator before the run.
            results: the outputs but for the states after the run.
            states: what each state is -> the input that it is in the file.
            shapes: of the states in the graph; see variable().
        """
        kept = {place: self.variable(place, shape) for place, shape in zip(states.values(), shapes, strict=False)}
        before = {place: self.read_state(state, self.tensor(place)) for place, state in kept.items()}
        after = [self.like(f"{word}_after", self.tensor(place), self.tensor(place).shape) for word, place in states.items()]
        self.emit(kind, [before[item] if isinstance(item, int) else item for item in inputs], [*results, *after], **attributes)
        for state, value in zip(kept.values(), after, strict=True):
            self.write_state(state, value)

    def variable(self, index: int, shape: tuple[int, ...] | None = None) -> Tensor:
        """The state that input `index` is, a tensor that an operator keeps from one run to the next (Tensor.is_variable).

        LiteRT resets it to 0, or an int8 one to its zero point.

        Args:
            index: the input.
            shape: under which the graph has it, as kernels look at the number of elements alone; None for its own.
        """
        tensor = self.tensor(index)
        if shape is not None:
            if tensor.static_shape is None or math.prod(tensor.static_shape) != math.prod(shape):
                raise self.invalid(f"has {tensor.name!r} of shape {tensor.shape}, not {shape[1:]}", rule="shape-mismatch")
            tensor = self.draft.tensors[tensor.name] = replace(tensor, shape=shape)
        if tensor.name not in self.draft.variables:
            raise self.unsupported_error(f"{tensor.name!r}, which is not a variable,", rule="no-variable")
        if self.inputs.count(tensor.name) > 1 or tensor.name in self.draft.states:
            raise self.unsupported_error(f"{tensor.name!r}, which two of its states, or two operators, share,", rule="shared-state")
        return replace(tensor, data=first_value(tensor, self.source))

    def result(self, index: int = 0) -> Tensor:
        """The canonical tensor of output `index`."""
        if index >= len(self.outputs):
            raise self.invalid(f"output {index} is absent", rule="output-missing")
        return self.draft.tensors[self.outputs[index]]

    def declare(self, constant: Tensor) -> None:
        """Makes output 0 a constant of the type and the data of another."""
        if constant.data is None:
            raise self.unsupported_error(f"input {constant.name!r} that is computed at run time", rule="not-constant")
        self.draft.tensors[self.outputs[0]] = replace(constant, name=self.outputs[0])

    def with_shape(self, shape: Shape | None, index: int = 0) -> Tensor:
        """Gives an output the shape that the kernel gives it, where the file states another; LiteRT resizes it so. None: the kind's own."""
        tensor = replace(self.result(index), shape=shape)
        if not is_compatible(shape, self.result(index).shape):
            self.draft.misstated[self.source] = None
        self.draft.tensors[tensor.name] = tensor
        return tensor

    def rank(self, index: int = 0) -> int:
        """The rank of input `index`; raises UnsupportedError if the file does not say it."""
        rank = self.tensor(index).rank
        if rank is None:
            raise self.unsupported_error(f"input {self.inputs[index]!r} of unknown rank", rule="unknown-rank")
        return rank

    def static_shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of input `index` in numbers; raises UnsupportedError if a size is dynamic."""
        shape = self.tensor(index).static_shape
        if shape is None:
            raise self.unsupported_error(f"input {self.inputs[index]!r} of a dynamic size", rule="dynamic-dimension")
        return shape

    def constant(self, index: int) -> Array | None:
        """The data of input `index` if it is a constant, else None."""
        return self.tensor(index).data if self.has(index) else None

    def find_dequantize(self, index: int) -> Op | None:
        """The operator that makes input `index` of a constant by a DEQUANTIZE, as converters give float16 weights; None if none does."""
        maker = self.producer(self.input(index), "Cast", "Dequantize")
        return maker if maker is not None and self.lookup(maker.inputs[0]).is_constant else None

    def known_ints(self, index: int) -> list[int] | None:
        """The integers of input `index`, flat, if they are known before the model runs, else None."""
        name = self.input(index)
        data = self.draft.known.get(name)
        if data is not None and data.dtype.kind not in "iu":
            raise self.invalid(f"input {name!r} is {data.dtype}, not integers", rule="not-integers")
        return None if data is None else [int(value) for value in np.asarray(data).reshape(-1)]

    def ints(self, index: int) -> list[int]:
        """The same; raises UnsupportedError if they are dynamic."""
        found = self.known_ints(index)
        if found is None:
            raise self.unsupported_error(f"input {self.input(index)!r} that is computed at run time", rule="not-constant")
        return found

    def integer(self, index: int) -> int:
        """The one integer of input `index`, which is known before the model runs, such as an axis."""
        found = self.ints(index)
        if len(found) != 1:
            raise self.invalid(f"input {self.inputs[index]!r} has {len(found)} elements, not one", rule="not-a-scalar")
        return found[0]

    def int64(self, index: int) -> str:
        """Input `index` as a tensor of int64, as ONNX wants shapes, axes and indices: a constant if it is known, or a Cast."""
        tensor = self.tensor(index)
        if "int" not in tensor.dtype:
            raise self.invalid(f"input {tensor.name!r} is {tensor.dtype}, not integers", rule="not-integers")
        known = self.draft.known.get(tensor.name)
        if known is not None and (tensor.data is None or tensor.dtype != "int64"):
            return self.draft.variant(tensor.name, "int64", np.asarray(known).astype(np.int64), None)
        if tensor.dtype == "int64":
            return tensor.name
        return self.emit_new("Cast", [tensor.name], "int64", "int64", tensor.shape, base=tensor.name, to="int64")

    def flat64(self, index: int) -> str:
        """The same for a list of sizes, axes or bounds: kernels take its elements in order, whatever shape it has."""
        name = self.int64(index)
        tensor = self.lookup(name)
        if tensor.rank in (None, 1):
            return name
        if tensor.data is not None:
            return self.draft.variant(name, "list", tensor.data.reshape(-1), None)
        flat = self.intermediate("list", "int64", None, base=name)
        return self.emit("Reshape", [name, self.list64([-1], "flat")], [flat])[0]

    def sizes_of(self, index: int) -> tuple[Polynomial, ...] | None:
        """What is known of the integers of input `index` before the model runs, see KnownSizes; None if not even their number is."""
        return self.draft.known.sizes.get(self.input(index))

    def difference(self, form: Polynomial, size: int | str, factor: int) -> int | None:
        """`form` - factor * `size`, if that is one number whatever the sizes are."""
        product = multiply_polynomials(self.draft.known.sizes.size(size), from_number(factor))
        found = None if product is None else subtract_polynomials(form, product)
        return None if found is None else number(found)

    def columns(self, index: int, hint: str) -> str:
        """Rows of (before, after) in input `index` as ONNX has them: all that is before, then all that is after."""
        rows = self.known_ints(index)
        if rows is not None:
            return self.list64(rows[::2] + rows[1::2], hint)
        shape = self.tensor(index).static_shape
        if shape is None or len(shape) != 2 or shape[1] != 2:
            raise self.unsupported_error(
                f"input {self.input(index)!r} of shape {self.tensor(index).shape}, which are not pairs in rows,", rule="unsupported-shape"
            )
        turned = self.intermediate(f"{hint}_by_side", "int64", (2, shape[0]))
        self.emit("Transpose", [self.int64(index)], [turned], perm=(1, 0))
        flat = self.intermediate(hint, "int64", (2 * shape[0],))
        return self.emit("Reshape", [turned, self.list64([-1], "flat")], [flat])[0]

    def intermediate(self, hint: str, dtype: str, shape: Shape | None, quantization: Quantization | None = None, base: str = "") -> str:
        """Adds a tensor between two canonical operators that one TFLite operator becomes; returns its name."""
        return self.draft.add(f"{base or self.outputs[0]}/{hint}", dtype, shape, None, quantization)

    def like(self, hint: str, tensor: Tensor, shape: Shape | None) -> str:
        """Adds an intermediate tensor of the dtype and quantization of `tensor`, of another shape."""
        return self.intermediate(hint, tensor.dtype, shape, tensor.quantization)

    def emit(
        self, kind: str, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None, **attributes: Attribute
    ) -> list[str]:
        """Appends a canonical operator; inputs and outputs are this operator's unless given. Returns the outputs' names.

        The results of data movement have the quantization of the data, and get their own after it; see emit_stored().
        """
        ins = list(self.inputs if inputs is None else inputs)
        outs = list(self.outputs if outputs is None else outputs)
        moved = KINDS[kind].moved_inputs(Op(kind, tuple(ins), tuple(outs))) if KINDS[kind].rule == "move" else []
        quantizations = [self.draft.tensors[name].quantization for name in moved]
        if (
            quantizations
            and quantizations.count(quantizations[0]) == len(quantizations)
            and (quantizations[0] is None or quantizations[0].is_per_tensor)
        ):
            return self.emit_stored(kind, ins, outs, None, **attributes)
        return self._append(kind, ins, outs, attributes)

    def emit_new(
        self, kind: str, inputs: Sequence[str], hint: str, dtype: str, shape: Shape | None, base: str = "", **attributes: Attribute
    ) -> str:
        """Appends a canonical operator whose one result is a new tensor; returns its name. See emit() and intermediate()."""
        return self.emit(kind, inputs, [self.intermediate(hint, dtype, shape, base=base)], **attributes)[0]

    def compute(self, formula: Callable[..., Value], *outputs: str) -> None:
        """Appends the operators that a formula of the inputs becomes (operators/values.py); its value is the output, or one of several."""
        op = Op("Opaque", self.inputs, outputs or self.outputs, {}, self.source)
        emission = Emission(self.draft.tensors, "float32", self.source, self.outputs[0])
        emission.finish(op, [formula(*(Symbol(emission, name) for name in self.inputs))])
        for name, tensor in emission.tensors.items():
            self.draft.tensors.setdefault(name, tensor)
        for part in emission.ops:
            self.draft.append(part)

    def emit_int64(self, kind: str, inputs: Sequence[str], hint: str = "int64", output: int = 0, **attributes: Attribute) -> None:
        """Appends an operator whose output `output` is int64 in the graph, and a Cast of it where the file has another type."""
        result = self.result(output)
        outs = list(self.outputs)
        if result.dtype != "int64":
            outs[output] = self.intermediate(hint, "int64", result.shape)
        self.emit(kind, inputs, outs, **attributes)
        if result.dtype != "int64":
            self.emit("Cast", [outs[output]], [result.name], to=result.dtype)

    def emit_stored(
        self,
        kind: str,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        quantization: Quantization | None = None,
        **attributes: Attribute,
    ) -> list[str]:
        """The same for a kernel that computes on stored integers, whatever scales and zero points its tensors state.

        Data with other quantizations get the label of the first by a Reinterpret, and the result gets its own back after the operator: the
        same integers, as the kernel has it. A fused activation clips on the result's own quantization.

        Args:
            kind, inputs, outputs, attributes: as emit() has them.
            quantization: the label to compute with, if it is not that of the first data input.
        """
        ins = list(self.inputs if inputs is None else inputs)
        outs = list(self.outputs if outputs is None else outputs)
        made = Op(kind, tuple(ins), tuple(outs), attributes)
        data = KINDS[kind].positions(made, "data", "factor", "filler")
        if not all(ins[position] for position in data) or not data:
            raise self.invalid("an input is absent", rule="input-missing")
        first = self.draft.tensors[ins[data[0]]]
        quantization = first.quantization if quantization is None else quantization
        for position in data:
            ins[position] = self.reinterpret(ins[position], quantization)
        results = [self.draft.tensors[name] for name in KINDS[kind].results_of(made)]
        other = [tensor for tensor in results if tensor.dtype == first.dtype and tensor.quantization != quantization]
        clip = str(attributes.get("activation", "")) if other else ""
        if clip:
            attributes = {**attributes, "activation": ""}
        moved = {t.name: self.draft.add(f"{t.name}/moved", t.dtype, t.shape, None, quantization) for t in other}
        self._append(kind, ins, [moved.get(name, name) for name in outs], attributes)
        for name, stored in moved.items():
            if clip:
                stored = self._relabel(stored, self.like("unclipped", self.draft.tensors[name], self.draft.tensors[name].shape))
                self._clip(stored, name, clip)
            else:
                self._relabel(stored, name)
        return outs

    def variant(self, index: int, key: str, data: Array, quantization: Quantization | None) -> str:
        """See OperatorReading; raises InvalidModelError if the constant's scales mean nothing."""
        self.require_sound([self.input(index)])
        return super().variant(index, key, data, quantization)

    def transpose_constant(self, index: int, key: str, data: Array, quantization: Quantization | None) -> str:
        """The same for a constant that may stand after a DEQUANTIZE: that is turned, and dequantized after it."""
        maker = self.find_dequantize(index)
        if maker is None:
            return self.variant(index, key, data, quantization)
        self.require_sound(maker.inputs)
        stored = self.draft.variant(maker.inputs[0], key, data, quantization)
        real = self.intermediate("real", self.tensor(index).dtype, data.shape, base=stored)
        self.draft.append(replace(maker, inputs=(stored,), outputs=(real,)))
        return real

    def reinterpret(self, name: str, quantization: Quantization | None) -> str:
        """The stored integers of `name` under the label `quantization`: itself if it has that."""
        tensor = self.draft.tensors[name] if name else None
        if tensor is None or tensor.quantization == quantization:
            return name
        if tensor.data is not None:
            key = (
                "stored"
                if quantization is None
                else f"stored {zlib.crc32(quantization.scale.tobytes() + quantization.zero_point.tobytes()):08x}"
            )
            return self.draft.variant(name, key, tensor.data, quantization)
        return self._relabel(name, self.intermediate("stored", tensor.dtype, tensor.shape, quantization, base=name))

    def ignores_scales(self, index: int) -> None:
        """Notes what the file states of input `index`, as its kernel uses the integers alone."""
        tensor = self.tensor(index)
        if tensor.quantization is not None:
            pairs = zip(tensor.quantization.scale.tolist(), tensor.quantization.zero_point.tolist(), strict=True)
            self.draft.ignored_scales.setdefault(tensor.name, list(pairs))

    def emit_plain(self, kind: str, inputs: Sequence[str] | None = None, **attributes: Attribute) -> list[str]:
        """The same for a kernel that takes stored integers for plain numbers of their own type."""
        ins = [self.reinterpret(name, None) for name in (self.inputs if inputs is None else inputs)]
        results = [self.draft.tensors[name] for name in self.outputs]
        plain = [t.name if t.quantization is None else self.intermediate("numbers", t.dtype, t.shape, base=t.name) for t in results]
        self._append(kind, ins, plain, attributes)
        for name, result in zip(plain, results, strict=True):
            if name != result.name:
                self._relabel(name, result.name)
        return list(self.outputs)

    def _relabel(self, stored: str, name: str) -> str:
        self.draft.append(Op("Reinterpret", (stored,), (name,), {}, self.source))
        return name

    def _append(self, kind: str, ins: Sequence[str], outs: list[str], attributes: Mapping[str, Attribute]) -> list[str]:
        """Appends an operator. A fused activation on plain integers is a Clip after it, as its bounds are integers there.

        Thresholds, bounds and fillers that a DEQUANTIZE of float16 gives are constants: no bytes are kept by leaving them so, and many
        operators of other formats take nothing else.
        """
        if KINDS[kind].rule not in ("move", "relabel", "plain", "state", "control", "opaque"):
            self.require_sound((*ins, *outs))
        ins = list(ins)
        for position in KINDS[kind].positions(Op(kind, tuple(ins), tuple(outs)), "parameter", "filler"):
            if ins[position] and self.draft.tensors[ins[position]].quantization is None:
                ins[position] = self.draft.fold_constant(ins[position])
        result = self.draft.tensors[outs[0]] if outs else None
        clip = str(attributes.get("activation", ""))
        if not clip or result is None or result.is_quantized or result.dtype in REALS:
            self.draft.append(Op(kind, tuple(ins), tuple(outs), attributes, self.source))
            return outs
        whole = self.like("unclipped", result, result.shape)
        self.draft.append(Op(kind, tuple(ins), (whole, *outs[1:]), {**attributes, "activation": ""}, self.source))
        self._clip(whole, outs[0], clip)
        return outs

    def require_sound(self, names: Iterable[str]) -> None:
        """Raises InvalidModelError if the scales of a tensor that an operator computes on, not moves, mean nothing."""
        for name in self.draft.unsound.keys() & set(names):
            raise self.invalid(f"tensor {name!r}: {self.draft.unsound[name]}", rule="scale-not-positive")

    def require_scales(self, *types: str) -> None:
        """Raises InvalidModelError if a tensor of one of `types`, by default all narrow ones, states no scale; the kernel divides by it."""
        names = [*filter(None, (*self.inputs, *self.outputs))]
        self.require_sound(names)
        for name in names:
            tensor = self.draft.tensors[name]
            if tensor.dtype in (types or ("int8", "uint8", "int16")) and not tensor.is_quantized:
                raise self.invalid(f"{name!r} of {tensor.dtype} without a scale", rule="scale-missing")

    def _clip(self, whole: str, name: str, activation: str) -> None:
        """A fused activation as a Clip of its own, with bounds of the result's type where it is plain integers."""
        result = self.draft.tensors[name]
        dtype = numpy_dtype("float32" if result.is_quantized else result.dtype)
        bounds = zip(("lowest", "highest"), ACTIVATIONS[activation], strict=True)
        limits = ["" if bound is None else self.const(np.asarray(bound, dtype), hint) for hint, bound in bounds]
        self.draft.append(Op("Clip", (whole, *limits), (name,), {}, self.source))


ReadFunction = Callable[[Reading], None]
Readers = Mapping[str, ReadFunction]
