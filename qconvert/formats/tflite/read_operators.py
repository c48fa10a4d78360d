"""The operators of a TFLite file in order: their codes, what each reads and writes, and composites as the operators that they stand for."""

from __future__ import annotations

import mmap
from collections import Counter
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError, format_some
from qconvert.formats.reading.draft import Draft
from qconvert.formats.tflite.functions import Functions, subgraphs_of
from qconvert.formats.tflite.ops.custom import read_custom
from qconvert.formats.tflite.ops.signal import COMPLEX
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.schema import BUILTIN_OPERATOR_NAMES, builtin_number, decode_text, numbers_of
from qconvert.formats.tflite.tensors import RESOURCE, bytes_of_options, read_tensors
from qconvert.formats.tflite.variables import VARIABLE_OPERATORS, Variables
from qconvert.formats.tflite.verify import wrong_arity
from qconvert.operators.opaque import BEFORE_COMPILER, compiler_of
from qconvert.plugins import operators

#: A name for a group of operators, which a subgraph lists; LiteRT runs these where it does not know the name.
_COMPOSITE = "STABLEHLO_COMPOSITE"

#: Operators that show what they do in a variable alone.
_WITHOUT_OUTPUTS = frozenset(("ASSIGN_VARIABLE", "CALL_ONCE"))

#: Composites may stand in composites; a chain of them can stand for more operators than any file lists.
_DEEPEST, _MOST = 16, 200_000


class Operations:
    """Reads operators of subgraphs into a draft.

    Raises UnsupportedError for operators that no plugin reads (all are listed), and for subgraphs without any reference.
    """

    def __init__(self, model: Any, data: mmap.mmap | bytes, draft: Draft) -> None:
        self._model, self._data, self._draft = model, data, draft
        self._codes = _operator_codes(model)
        self._readers = operators("tflite", "read")
        self._count = 0
        self._is_entry = True  # whether the subgraph that is read is entered from outside, so that CALL_ONCE comes before all else
        self.variables = Variables(model, data, lambda index: [code.key for code in self._subgraph_codes(index)])
        self.functions = Functions(model, self._read_function, draft.functions)
        parts = self._used_subgraphs() | self.variables.initial
        reached = [code for index in (0, *sorted(parts)) for code in self._subgraph_codes(index)]
        missing = [code.name for code in reached if not code.is_custom and code.name != _COMPOSITE]
        _require_covered(missing, self._readers, len(reached))
        _require_one_subgraph(model, parts)

    def _subgraph_codes(self, index: int) -> list[_Code]:
        return [_code_of(self._codes, operation.opcodeIndex) for operation in self._model.subgraphs[index].operators]

    def _used_subgraphs(self) -> set[int]:
        """The subgraphs that signatures enter, composites stand for and operators run, from the first subgraph on."""
        found = {item.subgraphIndex for item in self._model.signatureDefs} - {0}
        if found and not max(found) < len(self._model.subgraphs):
            raise InvalidModelError(f"a signature names subgraph {max(found)} of {len(self._model.subgraphs)}", rule="unknown-subgraph")
        waiting = [0, *sorted(found)]
        while waiting:
            index = waiting.pop()
            for code, operation in zip(self._subgraph_codes(index), self._model.subgraphs[index].operators, strict=True):
                if code.is_custom:
                    continue
                named = [self._composite_subgraph(operation)] if code.name == _COMPOSITE else subgraphs_of(code.name, _options(operation))
                for part in named:
                    if not 0 < part < len(self._model.subgraphs):
                        raise InvalidModelError(
                            f"{code.name} names subgraph {part} of {len(self._model.subgraphs)}", rule="unknown-subgraph"
                        )
                new = [part for part in named if part not in found]
                found.update(new)
                waiting += new
        return found

    def _read_function(self, index: int, draft: Draft) -> tuple[list[str], list[str]]:
        """Reads a subgraph that an operator runs; returns its inputs and outputs."""
        inside = copy(self)
        inside._draft = draft
        inside._is_entry = any(item.subgraphIndex == index for item in self._model.signatureDefs)
        names = read_tensors(self._model, self._data, draft, index)
        subgraph = self._model.subgraphs[index]
        inputs = indices(subgraph.inputs, names, f"the inputs of subgraph {index}")
        outputs = indices(subgraph.outputs, names, f"the outputs of subgraph {index}")
        if not all((*inputs, *outputs)) or len({*inputs}) != len(inputs):
            raise InvalidModelError(f"subgraph {index} has an input twice, or one that is absent", rule="duplicate-input")
        ready = {name for name, tensor in draft.tensors.items() if tensor.is_constant} | {*inputs}
        inside.variables = self.variables.for_function()
        inside.read(index, names, ready)
        if own := [name for name, state in draft.states.items() if state is not self.variables.states.get(name)]:
            what = f"an operator with variables of its own ({own[0]!r}) in a subgraph that an operator runs"
            raise UnsupportedError(f"{what} is not covered", where=f"subgraph {index}", rule="variables-in-subgraph")
        self._draft.outermost.states.update(draft.states)
        draft.states.clear()
        self._count = inside._count
        for name in outputs:
            if name not in ready:
                raise InvalidModelError(f"subgraph {index} gives {name!r}, which no operator computes", rule="not-computed")
        return inputs, outputs

    def _composite_subgraph(self, operation: Any) -> int:
        index = int(getattr(operation.builtinOptions2, "decompositionSubgraphIndex", -1))
        if not 0 < index < len(self._model.subgraphs):
            raise InvalidModelError(f"a composite names subgraph {index} of {len(self._model.subgraphs)}", rule="unknown-subgraph")
        return index

    def read(self, subgraph: int, names: list[str], ready: set[str], depth: int = 0, source: int = 0) -> None:
        """Reads the operators of a subgraph in order.

        Args:
            subgraph: its index.
            names: of its tensors.
            ready: the names that have a value; what the operators write is added.
            depth: in how many composites it stands.
            source: the position of the outermost composite in its subgraph.
        """
        if depth > _DEEPEST:
            raise InvalidModelError(f"more than {_DEEPEST} composites are nested", rule="nested-too-deeply")
        maker = next(filter(None, (compiler_of(code.name) for code in self._subgraph_codes(subgraph) if code.is_custom)), "")
        for index, (operation, code) in enumerate(
            zip(self._model.subgraphs[subgraph].operators, self._subgraph_codes(subgraph), strict=True)
        ):
            self._count += 1
            if self._count > _MOST:
                raise InvalidModelError(f"the composites expand to more than {_MOST} operators", rule="too-many-operators")
            reading = self._reading(operation, source if depth else index, code, names)
            if _is_reset(reading, self._draft):
                continue
            _require_order(reading, ready, self._draft.variables, maker)
            if code.name == _COMPOSITE and not code.is_custom:
                self._inline(reading, self._composite_subgraph(operation), ready, depth, source if depth else index)
            else:
                _reader(self._readers.get(code.key, read_custom), self._draft, reading)(reading)
            ready.update(reading.outputs)

    def _reading(self, operation: Any, index: int, code: _Code, names: list[str]) -> Reading:
        where = f"{code.name} #{index}"
        inputs = indices(operation.inputs, names, f"the inputs of {where}")
        outputs = indices(operation.outputs, names, f"the outputs of {where}")
        has_results = code.key not in _WITHOUT_OUTPUTS
        if not all(outputs) or (has_results and not outputs):
            raise InvalidModelError(
                "an operator without outputs" if not outputs else "an output is absent", where=where, rule="output-missing"
            )
        if wrong := wrong_arity(code.key, inputs, outputs):
            raise InvalidModelError(wrong, where=f"{where} ({outputs[0]!r})" if outputs else where, rule="wrong-number-of-tensors")
        stated = bytes_of_options(operation, self._data)
        custom = b"" if stated is None else stated.tobytes()
        options = _options(operation)
        inner = tuple(indices(operation.intermediates, names, f"the intermediates of {where}"))
        sides = tuple(inputs), tuple(outputs)
        made = Reading(self._draft, code.name, index, *sides, options, code.version, custom, self.variables, self.functions, inner)
        handles = [name for name in (*inputs, *outputs) if name and self._draft.tensors[name].dtype == RESOURCE]
        if not self._is_entry and code.key == "CALL_ONCE":
            raise made.unsupported_error("initial values in a subgraph that an operator runs", rule="variables-in-subgraph")
        if handles and code.key not in VARIABLE_OPERATORS:
            raise made.unsupported_error(f"{handles[0]!r}, a variable,", rule="variable-operand")
        return made

    def _inline(self, reading: Reading, part: int, ready: set[str], depth: int, source: int) -> None:
        """The operators of a composite: its inputs and outputs stand for those of the subgraph."""
        subgraph = self._model.subgraphs[part]
        names = read_tensors(self._model, self._data, self._draft, part)
        given, wanted = numbers_of(subgraph.inputs), numbers_of(subgraph.outputs)
        if (
            len(given) != len(reading.inputs)
            or len(wanted) != len(reading.outputs)
            or not all(0 <= i < len(names) for i in (*given, *wanted))
        ):
            raise reading.invalid(
                f"its {len(reading.inputs)} inputs and {len(reading.outputs)} outputs are not those of subgraph {part}",
                rule="counts-differ",
            )
        for index, name in zip(given, reading.inputs, strict=True):
            names[index] = name
        passed = []  # outputs that no operator of the subgraph writes, or that it gives out twice
        for index, name in zip(wanted, reading.outputs, strict=True):
            if index in given or names[index] in reading.outputs or self._draft.tensors[names[index]].is_constant:
                passed.append((names[index], name))
            else:
                names[index] = name
        inner = {name for name in names if name and self._draft.tensors[name].is_constant}
        self.read(part, names, inner.union(ready), depth + 1, source)
        for value, name in passed:
            reading.emit("Identity", [value], [name])


def _reader(usual: ReadFunction, draft: Draft, reading: Reading) -> ReadFunction:
    """The function that reads an operator: one of few where it has complex numbers."""
    if draft.complex.isdisjoint((*reading.inputs, *reading.outputs)):
        return usual
    if reading.name not in COMPLEX:
        raise reading.unsupported_error("complex numbers", rule="complex-numbers")
    return COMPLEX[reading.name]


def operator_names(model: Any, subgraph: Any) -> list[str]:
    """The operators of a subgraph in order, custom ones by their own names."""
    codes = _operator_codes(model)
    return [_code_of(codes, operation.opcodeIndex).name for operation in subgraph.operators]


class _Code(NamedTuple):
    """An operator code: the builtin operator's name, or the custom operator's own."""

    name: str
    version: int
    is_custom: bool

    @property
    def key(self) -> str:
        """Under which its read function is known; "" for a custom operator that is called as a builtin one."""
        return "" if self.is_custom and self.name in BUILTIN_OPERATOR_NAMES else self.name


def _operator_codes(model: Any) -> list[_Code]:
    """The operator codes of a model. An invalid code has an empty name, and is an error only if an operator uses it."""
    builtin = dict(enumerate(BUILTIN_OPERATOR_NAMES))
    found = []
    for code in model.operatorCodes:
        number = builtin_number(code)
        name = builtin.get(number, f"operator number {number}")
        is_custom = name == "CUSTOM"
        found.append(_Code(_custom_code(code.customCode) if is_custom else name, code.version, is_custom))
    return found


def _custom_code(code: bytes | None) -> str:
    """The code of a custom operator as text; "" where it has none, or it is no text."""
    try:
        return (code or b"").decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _options(operation: Any) -> Any:
    """The table of an operator's options; newer operators have theirs in a field of its own."""
    return operation.builtinOptions or operation.builtinOptions2


def _code_of(codes: list[_Code], index: int) -> _Code:
    if index >= len(codes):
        raise InvalidModelError(f"an operator names operator code {index} of {len(codes)}", rule="unknown-operator-code")
    if not codes[index].name:
        raise InvalidModelError(
            "a custom operator has no code, or one that is not UTF-8", where=f"operator code {index}", rule="operator-without-name"
        )
    return codes[index]


#: Why operators have no form in ONNX.
_RULES = {
    "gives random numbers, others in each runtime": "RANDOM_UNIFORM RANDOM_STANDARD_NORMAL MULTINOMIAL STABLEHLO_RNG_BIT_GENERATOR",
    "works on text": "SKIP_GRAM",
    "looks text up in a table that the program around fills": "HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE HASHTABLE_LOOKUP",
    "hashes by a function that ONNX lacks": "LSH_PROJECTION",
    "takes sparse rows": "EMBEDDING_LOOKUP_SPARSE",
}


def _require_covered(names: list[str], readers: Any, count: int) -> None:
    """Raises UnsupportedError with every operator that no plugin reads, and how often each occurs."""
    missing = Counter(name for name in names if name not in readers)
    if missing:
        reasons = {name: why for why, operators in _RULES.items() for name in operators.split()}
        why = {name: f", which {reasons[name]}" if name in reasons else "" for name in missing}
        listed = ", ".join(f"{name} ({count}{why[name]})" for name, count in sorted(missing.items()))
        raise UnsupportedError(
            f"{sum(missing.values())} of {count} operators are not covered: {listed}",
            remedy="A plugin can add operators (hook qconvert_operators); `qconvert plugins` lists what is loaded.",
            rule="operators-not-covered",
        )


def _require_one_subgraph(model: Any, parts: set[int]) -> None:
    """Raises UnsupportedError for further subgraphs that no composite has, unless the file has signatures and all lead to the first.

    No other operator that is covered refers to a subgraph, so without a signature that names it a further one cannot be reached.
    """
    if {*range(1, len(model.subgraphs))} <= parts:
        return
    keys: dict[int, list[str]] = {}
    for found in model.signatureDefs:
        keys.setdefault(found.subgraphIndex, []).append(decode_text(found.signatureKey))
    if set(keys) == {0}:
        return
    named = []
    for index, subgraph in enumerate(model.subgraphs):
        name = decode_text(subgraph.name)
        signatures = "".join(f", signature {key!r}" for key in keys.get(index, ()))
        named.append(f"{index} ({name!r}{signatures})")
    listed = format_some(named, 8)
    raise UnsupportedError(
        f"the file holds {len(named)} subgraphs, and one is covered: {listed}",
        remedy="Export each signature to a file of its own.",
        rule="several-subgraphs",
    )


def indices(found: Any, names: list[str], what: str) -> list[str]:
    """Tensor names for a vector of tensor indices, or for None; -1 is an absent tensor."""
    if found is None:
        return []
    listed = []
    for index in found.tolist():
        if not -1 <= index < len(names):
            raise InvalidModelError(f"{what} name tensor {index} of {len(names)}", rule="unknown-tensor")
        listed.append("" if index == -1 else names[index])
    return listed


def _is_reset(reading: Reading, draft: Draft) -> bool:
    """Whether all that the operator does is to give another operator's variable the zeros that it begins with: converters write float16
    models so, whose DEQUANTIZE of a constant runs once (dequantize.h), and the variable goes on from there."""
    if reading.name != "DEQUANTIZE" or reading.outputs[0] not in draft.variables:
        return False
    data = reading.constant(0)
    if data is None or data.dtype != np.float16 or data.any():
        raise reading.unsupported_error(
            f"{reading.outputs[0]!r}, a variable that begins with other values than zeros of float16,", rule="nonzero-initial-state"
        )
    return True


def _require_order(reading: Reading, ready: set[str], variables: set[str], maker: str) -> None:
    """TFLite runs operators as listed: an input that nothing has computed yet means a cycle or a wrong order. LiteRT's kernels
    then read what the memory happens to hold, such as the last run's values (measured).

    Operators of a compiler have scratch memory as inputs, too.

    Args:
        reading: the operator.
        ready: tensors that have a value.
        variables: tensors that are kept from one run to the next.
        maker: a compiler that made operators of this subgraph, or "".
    """
    own = compiler_of(reading.name)
    for name in filter(None, reading.inputs):
        if (name not in ready and maker) or (own and name in variables):
            raise UnsupportedError(
                f"reads {name!r}, which no operator before it computes; the file holds code of {own or maker}, with memory of its own",
                where=f"{reading.source} ({reading.outputs[0]!r})",
                remedy=BEFORE_COMPILER,
                rule="compiled-for-accelerator",
            )
        if name not in ready:
            error = reading.invalid(
                f"reads {name!r} before any operator has computed it; TFLite runs operators in the order of the file", rule="not-computed"
            )
            error.remedy = "Export the model again, with each operator after those whose results it reads."
            raise error
    for name in reading.outputs:
        if name in ready:
            raise reading.invalid(
                f"writes {name!r}, which is already an input, a constant or another operator's output", rule="two-producers"
            )
