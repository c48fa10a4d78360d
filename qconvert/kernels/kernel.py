"""The row of a kernel, and the rows of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from qconvert.errors import OptionError

if TYPE_CHECKING:  # targets, which have rows, are listed without numpy
    from qconvert.graph import Array, Graph, Op, Quantization, Tensor


#: (graph, operator) -> words; "" if there is nothing to say.
Form = Callable[["Graph", "Op"], str]
#: (graph, operator, exact values in steps of the result) -> how far from these its integers may be before they are rounded, as an array
#: like them, and whether the arithmetic is so coarse that the operator counts as approximate.
Tolerance = Callable[["Graph", "Op", "Array"], "tuple[Array, bool]"]
#: (graph, operator, stored inputs, None for those absent or unknown) -> the kernel's integers; None where they are not known.
Reference = Callable[["Graph", "Op", "Sequence[Any]"], "Integers | None"]

#: Why the integers of an operator on float values are not known.
IN_ANY_ORDER = "float32 in an order, and with functions, that vectors of the CPU decide"
_RUNS = ("integers", "stored", "float", "inexact", "nothing")
_ONE_QUANTIZATION = ("", "all", "data")
_REAL = ("bias", "result", "sums")
#: What exact arithmetic in float64 leaves, in steps.
_LEAST = 1e-6
#: Steps of the result from which on arithmetic is coarse.
COARSE = 0.1
#: Types that hold the same values with as many bits, of which a conversion may choose either.
_SIBLINGS = {"int8": "uint8", "uint8": "int8", "int16": "uint16", "uint16": "int16"}


class Integers(NamedTuple):
    """What a kernel gives, to the last bit.

    Attributes:
        ways: the stored result; several where parts of a kernel do not compute alike, as vectors and what is left over: each element is
            that of one of them.
        fault: why the result is far from the exact one, in words after "its own kernel", such as "overflows"; "" if it is near.
    """

    ways: tuple[Array, ...]
    fault: str = ""

    @classmethod
    def of_parts(cls, found: Iterable[Array]) -> Integers:
        """Return what the parts of a kernel give, each way once: parts may compute alike."""
        import numpy as np

        ways: list[Array] = []
        for way in found:
            if not any(np.array_equal(way, other) for other in ways):
                ways.append(way)
        return cls(tuple(ways))

    @classmethod
    def clip_to_limits(cls, graph: Graph, op: Op, found: Array) -> Integers:
        """Return numbers in the operator's result type, clipped to the limits of type and activation."""
        import numpy as np

        from qconvert.graph import numpy_dtype

        return cls((np.clip(found, *activated_range(graph, op)).astype(numpy_dtype(graph[op.name].dtype)),))


def activated_range(graph: Graph, op: Op) -> tuple[int, int]:
    """Return the least and the largest integer that an operator with its activation stores."""
    from qconvert.graph.activations import activation_bounds, clip_range

    return clip_range(graph[op.name], activation_bounds(op))


def quantizations_of(graph: Graph, op: Op, inputs: int | None = 1, *, of_any_axis: bool = False) -> list[Quantization]:
    """Return the quantizations of the first inputs, or all, and of the result; none unless each is quantized and has one scale, or scales
    along any axis if so asked."""
    listed = [graph[name].quantization for name in (*op.inputs[:inputs], op.name)]
    found = [quantization for quantization in listed if quantization is not None and (of_any_axis or quantization.is_per_tensor)]
    return found if len(found) == len(listed) else []


def quantizing_form(arithmetic: str) -> Form:
    """Return the form of a kernel that quantizes float32 numbers to one scale."""
    return lambda graph, op: arithmetic if graph[op.inputs[0]].dtype == "float32" and graph[op.name].per_tensor is not None else ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One row: a kernel of a runtime, which takes operators of some kinds with data of some types.

    Attributes:
        kinds: of operators; none for all.
        types: of stored data; none for all.
        runs: what an operator runs on where a target has the choice: "integers"; "stored", integers of any type taken as plain numbers,
            where all sides have one scale and zero point; "float", between Dequantize and Quantize, where there is no kernel of
            integers; "inexact", likewise, where there is one that is less exact; "nothing", where there is no kernel at all: the
            pass lower_missing composes such operators of others.
        lacks: for which of these operators there is no kernel, in words that follow "has no integer kernel for".
        fault: for which of them it is wrong, in words; a target leaves them in float.
        result: storage type -> scale and zero point that the kernel fixes for its result.
        one_quantization: what must have one scale and zero point: "all" for data and results, "data" for the data among themselves.
        real: sides that may be float next to quantized ones: "bias", if the result is quantized; "result"; "sums", both bias and result, if
            sums of products become float values before the bias is added.
        rounds_bias: whether a real bias is rounded to int32 with the quantization of the accumulator before it is added; see
            products.rounded_bias().
        tolerance: how far its integers may be from the exact value. By default it is measured with the reference on all inputs, of an
            elementwise operator on one or two tensors; others, and those without a reference, count as exact values, rounded.
        reference: its integers, computed as the kernel does, for data of the row's types; with the file of the runtime as source in its
            docstring.
        unknown: why it has no reference, though its integers are not the exact values, rounded.
        by_file: whether the form of a file decides which of several kernels runs, so that an operator may have another one in another file.
        as_fast_in_float: whether the runtime runs these operators as fast in float. A target then leaves them in float where the result
            has another scale than the kernel fixes: this avoids a second rounding.
        arithmetic: the value of the attribute `arithmetic`, by which formats write an equivalent form for other runtimes; "" if none is
            known. An operator on one tensor of 8 bits needs none, since its reference is a table.
        layout: the data_format in which the kernel runs an operator faster by more than a Transpose costs, of a format whose operator
            takes any (ONNX's Resize); "" where it makes no such difference.
        below_largest: whether its integers along an axis follow from how far each element of the data is below the largest, so that all
            codes of three elements can be tried.
    """

    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    runs: str = "integers"
    lacks: Form | None = None
    fault: Form | None = None
    result: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    one_quantization: str = ""
    real: tuple[str, ...] = ()
    rounds_bias: bool = False
    as_fast_in_float: bool = False
    tolerance: Tolerance | None = None
    reference: Reference | None = None
    unknown: str = ""
    by_file: bool = False
    arithmetic: Form | None = None
    layout: Form | None = None
    below_largest: bool = False

    def __post_init__(self) -> None:
        """Raise OptionError for unknown words, and for what is no function."""
        for name, known in (("runs", _RUNS), ("one_quantization", _ONE_QUANTIZATION)):
            if getattr(self, name) not in known:
                raise OptionError(f"{name} of a kernel is {getattr(self, name)!r}", remedy=f"Use one of {known}.", rule="unknown-word")
        for name in ("kinds", "types"):
            if isinstance(word := getattr(self, name), str):
                raise OptionError(f"{name} of a kernel is {word!r}", remedy=f"Write a tuple: {(word,)!r}.", rule="unknown-word")
        if not set(self.real) <= set(_REAL):
            raise OptionError(f"real of a kernel is {self.real!r}", remedy=f"Use some of {_REAL}.", rule="unknown-word")
        for name in ("lacks", "fault", "tolerance", "reference", "arithmetic", "layout"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise OptionError(
                    f"{name} of a kernel is {function!r}", remedy="Give it a function of graph and operator.", rule="not-a-function"
                )

    def compute_integers(self, graph: Graph, op: Op, inputs: Sequence[Any]) -> Integers | None:
        """Compute the integers of the reference for stored inputs; None without one.

        The reference gets the row's types. A graph that stores the same float values as the other type of as many bits is restated first.
        """
        if self.reference is None:
            return None
        dtype = _data_type(graph, op)
        own = not self.types or dtype in self.types or _SIBLINGS.get(dtype) not in self.types
        found = self.reference(graph, op, inputs) if own else self.reference(*_restate(graph, op, inputs, dtype))
        if found is not None and not isinstance(found, Integers):  # of a plugin
            raise OptionError(
                f"the reference of {op.kind} returned a {type(found).__name__}",
                remedy="Return qconvert.plugin.Integers.",
                rule="wrong-result",
            )
        return found if found is None or own else found._replace(ways=tuple(_shift(way, dtype) for way in found.ways))

    def as_float_row(self) -> Kernel:
        """Return the row of the same operators between Dequantize and Quantize; it keeps only the tolerance."""
        return Kernel(self.kinds, self.types, "float", tolerance=self.tolerance, unknown=IN_ANY_ORDER)


def _data_type(graph: Graph, op: Op) -> str:
    """Return the type by which rows take an operator: of its result if that is quantized, else of its first input."""
    result = graph[op.name]
    return result.dtype if result.is_quantized else next((graph[name].dtype for name in op.inputs if name), result.dtype)


def _shift(stored: Array, dtype: str) -> Array:
    """Return the same float values stored as `dtype`, of integers of the other type of as many bits."""
    import numpy as np

    from qconvert.graph import integer_range

    return (stored.astype(np.int64) + integer_range(dtype)[0] - integer_range(_SIBLINGS[dtype])[0]).astype(dtype)


def _restate(graph: Graph, op: Op, inputs: Sequence[Any], dtype: str) -> tuple[Graph, Op, list[Any]]:
    """Return an operator, alone in its graph, with what it stores as `dtype` stored as the other type of as many bits, and its inputs."""
    from qconvert.graph import integer_range

    other = _SIBLINGS[dtype]
    offset = integer_range(other)[0] - integer_range(dtype)[0]
    own = {name: graph[name] for name in op.names if name}
    tensors = {
        tensor.name: replace(
            tensor,
            dtype=other,
            data=None if tensor.data is None else _shift(tensor.data, other),
            quantization=tensor.quantization.shift_zero_point(offset),
        )
        for tensor in own.values()
        if tensor.dtype == dtype and tensor.quantization is not None
    }
    restated = [
        values if values is None or name not in tensors else _shift(values, other) for name, values in zip(op.inputs, inputs, strict=True)
    ]
    alone = replace(graph, tensors={**own, **tensors}, ops=(op,), inputs=(), outputs=op.outputs, signatures=())
    return alone, op, restated


def constant_tolerance(steps: float) -> Tolerance:
    """Return a tolerance of the same number of steps for every element, such as 1e-6 for exact arithmetic in float64."""

    def everywhere(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
        import numpy as np

        return np.full(exact.shape, steps), False

    return everywhere


#: Roundings to float32 between an exact sum and a result (scales, their inverses, their product, the bias), and the least that they make.
_FLOAT32, _LEAST_IN_FLOAT32 = 64 * 2.0**-24, 1e-3


def float32_tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """Return the tolerance of an operator that computes in float32, sums in any order, and rounds once at its end."""
    import numpy as np

    from qconvert.kernels.tolerances import partial_sums

    found = np.maximum(_LEAST_IN_FLOAT32, np.abs(exact) * _FLOAT32) + 2 * partial_sums(graph, op, exact, least=255.0)
    return found, False


class _RowsOfKind(NamedTuple):
    """The rows of one kind, sorted once: they are asked of every operator again and again.

    Attributes:
        taking: that name it or all kinds, in their order.
        named: that name it, by what they run on.
        is_missing: whether there is no kernel at all.
        types: of data for which there is an integer kernel; none for all, None where there is no such kernel.
        real: sides that an integer kernel that names it takes as float values.
    """

    taking: tuple[Kernel, ...]
    named: Mapping[str, tuple[Kernel, ...]]
    is_missing: bool
    types: tuple[str, ...] | None
    real: frozenset[str]

    @classmethod
    def among(cls, rows: Sequence[Kernel], kind: str) -> _RowsOfKind:
        taking = tuple(row for row in rows if not row.kinds or kind in row.kinds)
        own = [row for row in taking if row.kinds]
        is_missing = bool(own) and own[0].runs == "nothing"
        integer = [] if is_missing else [row for row in taking if row.runs == "integers"]
        types = tuple(dict.fromkeys(dtype for row in integer for dtype in row.types)) if all(row.types for row in integer) else ()
        named = {runs: tuple(row for row in own if row.runs == runs) for runs in {row.runs for row in own}}
        real = frozenset(side for row in named.get("integers", ()) for side in row.real)
        return cls(taking, named, is_missing, types if integer else None, real)


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of a runtime. Of the rows that take an operator the first one stands for it.

    Attributes:
        given: their rows, or a function that imports them at the first use. By default nothing is known: all quantized operators are taken
            to run on integers.
        dynamic_range: whose rounding of real data next to integer weights the runtime has: "tflite" (rows and images by themselves),
            "onnx" (whole tensors, and others decomposed), or "": such operators compute in float.
        product_types: types of float values that kernels multiply by weights in; empty for any.
        unpacked_weights: storage type of constant weights that the runtime dequantizes once, when it loads a model; "" if it would do so at
            each run: weights of operators in float are then stored as float values.
        unpacked_blocks: storage types, the narrowest first, of constant weights in blocks after a Dequantize, with the zero point 0, that
            the runtime takes; without any such weights are stored as float values.
        decomposed_bounds: kinds into which the runtime fuses no activation rightly: decompose_activations puts a Clip after them whose
            bounds are those of the quantization.
        half_floats: whether values in float have the precision of float16, whatever their type.
        tiles: share of its largest result by which a convolution of float data may be off that the runtime computes by tiles (Winograd);
            0 where it adds the products themselves.
        merges_roundings: whether the runtime makes one rounding of two one after the other, with other integers.
        in_file_only: whether operators have these kernels because of what stands next to them in the file; alone they have others.
        max_pair_sum: largest magnitude of the sum of two int8 weights adjacent along K, of the same sign, that the target's
            kernels add without saturation; 0 means any. Other weights are stored as uint8 with zero point 128.
    """

    given: Sequence[Kernel] | Callable[[], Sequence[Kernel]] = (Kernel(),)
    dynamic_range: str = ""
    product_types: tuple[str, ...] = ()
    unpacked_weights: str = ""
    unpacked_blocks: tuple[str, ...] = ()
    decomposed_bounds: tuple[str, ...] = ()
    half_floats: bool = False
    tiles: float = 0.0
    merges_roundings: bool = False
    in_file_only: bool = False
    max_pair_sum: int = 0

    @cached_property
    def rows(self) -> tuple[Kernel, ...]:
        return tuple(self.given() if callable(self.given) else self.given)

    @cached_property
    def _by_kind(self) -> dict[str, _RowsOfKind]:
        """By kind; "" stands for those that no row names. Raise OptionError for a kind that does not exist, whose row would never apply."""
        from qconvert.graph.names import quote_nearest
        from qconvert.operators import KINDS  # with those of plugins, which are there when an operator is

        kinds = dict.fromkeys(kind for row in self.rows for kind in row.kinds)
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            reason = f"a row of a kernel names the kind {quote_nearest(unknown, KINDS)}, which does not exist"
            raise OptionError(reason, remedy="docs/operators.md lists the kinds; a plugin adds one by qconvert_kinds.", rule="unknown-kind")
        return {kind: _RowsOfKind.among(self.rows, kind) for kind in (*kinds, "")}

    def _find_rows(self, op: Op) -> _RowsOfKind:
        return self._by_kind.get(op.kind, self._by_kind[""])

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Iterate over the kinds with integer kernels, each with the types of their data; none for all."""
        return ((kind, rows.types) for kind, rows in self._by_kind.items() if kind and rows.types is not None)

    @cached_property
    def known(self) -> bool:
        """Whether the rows say which operators run on integers; else all quantized ones are taken to do so."""
        return bool(self.missing) or not any(row.runs == "integers" and not row.kinds for row in self.rows)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The kinds that have no kernel at all."""
        return tuple(kind for kind, rows in self._by_kind.items() if rows.is_missing)

    def lacks(self, op: Op) -> bool:
        """Whether there is no kernel at all for operators of its kind."""
        return self._find_rows(op).is_missing

    def rows_for(self, op: Op, runs: str = "integers") -> tuple[Kernel, ...]:
        """The rows that name the kind of an operator."""
        return self._find_rows(op).named.get(runs, ())

    def kinds(self, which: Callable[[Kernel], bool]) -> list[str]:
        """Return the kinds of the integer kernels for which `which` is true."""
        return list(dict.fromkeys(kind for row in self.rows if row.runs == "integers" and which(row) for kind in row.kinds))

    def types(self, op: Op) -> tuple[str, ...] | None:
        """The types of data for which operators of its kind have an integer kernel; none for all, None where they have no such kernel."""
        return self._find_rows(op).types

    def tile_error(self, graph: Graph, op: Op) -> float:
        """Return the share of its largest result by which tiles may make an operator off: a convolution whose windows have more than one
        element; see `tiles`."""
        from qconvert.operators import kind_of

        is_tiled = kind_of(op).has_weights and any(size != 1 for size in (graph[op.inputs[1]].shape or ())[2:])
        return self.tiles if is_tiled else 0.0

    def takes_real(self, op: Op, side: str) -> bool:
        """Whether an integer kernel of an operator's kind takes a side as float values; see Kernel.real."""
        return side in self._find_rows(op).real

    def fixed_qparams(self, op: Op, dtype: str) -> tuple[float, int] | None:
        """Return scale and zero point that results of a type must have; None if any."""
        return next((row.result[dtype] for row in self.rows_for(op) if dtype in row.result), None)

    def fixed_result(self, graph: Graph, op: Op) -> tuple[Tensor, Quantization] | None:
        """Return the quantized result of an operator, and the quantization that its kernel fixes for that; None if it fixes none."""
        from qconvert.graph import Quantization

        result = graph[op.name] if any(op.outputs[:1]) else None
        fixed = None if result is None or result.quantization is None else self.fixed_qparams(op, result.dtype)
        return None if result is None or fixed is None else (result, Quantization.per_tensor(*fixed))

    def one_quantization(self, op: Op, dtype: str) -> str:
        """Which sides must have one scale and zero point, where data have a type: "all", "data", or "" for none."""
        return next((row.one_quantization for row in self.rows_for(op) if row.one_quantization and dtype in (row.types or (dtype,))), "")

    def with_rows(self, *rows: Kernel) -> Kernels:
        """These kernels with further ones, which stand first."""
        return replace(self, given=lambda: (*rows, *self.rows))

    def without(self, *kinds: str) -> Kernels:
        """These kernels without those of some kinds."""
        return self.with_rows(Kernel(kinds, runs="nothing"))

    def find_kernel(self, graph: Graph, op: Op, dtype: str) -> tuple[Kernel | None, str]:
        """Return the integer kernel that takes an operator with data of a type, and ""; else None and the reason, in words."""
        reason = ""
        for row in self._find_rows(op).taking:
            if row.runs != "integers":
                continue
            if row.types and dtype not in row.types:
                reason = reason or f"{dtype} data"
            elif row.lacks is None or not (words := row.lacks(graph, op)):
                return row, ""
            else:
                reason = words
        return None, reason

    def of(self, graph: Graph, op: Op) -> Kernel | None:
        """The row that stands for an operator as the runtime runs it, whatever a target would choose.

        The graph may be one from which the runtime's file was made: it may store the same values as the other type of as many bits.
        """
        if not op.outputs or not op.outputs[0]:
            return None
        dtype = _data_type(graph, op)
        found: Kernel | None = None
        for row in self._find_rows(op).taking:
            own = not row.types or dtype in row.types
            if not (own or _SIBLINGS.get(dtype) in row.types) or (row.lacks is not None and row.lacks(graph, op)):
                continue
            if own and (found is None or row.kinds):
                return row
            found = found or row
        return found

    def fault(self, graph: Graph, op: Op) -> str:
        """Return the fault of an operator's kernel, in words; "" if it has none."""
        if all(row.fault is None for row in self._find_rows(op).taking):
            return ""
        row = self.of(graph, op)
        return row.fault(graph, op) if row is not None and row.fault is not None else ""

    def layout(self, graph: Graph, op: Op) -> str:
        """Return the data_format in which an operator's kernel is faster; "" if it runs as well in any."""
        found = (row.layout(graph, op) for row in self._find_rows(op).taking if row.layout is not None)
        return next(filter(None, found), "")

    def tolerance(self, graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
        """Return how far the integers of an operator may be from the exact values before they are rounded; see Kernel.tolerance.

        Args:
            graph, op: the operator.
            exact: in steps of the result.
        """
        row = self.of(graph, op)
        if row is not None and row.tolerance is not None:
            return row.tolerance(graph, op, exact)
        from qconvert.kernels.proofs import tried_tolerance  # which evaluates operators

        steps = (0.0 if row is None else tried_tolerance(graph, op, row)) or _LEAST
        return constant_tolerance(steps)(graph, op, exact)[0], steps > COARSE

    def integers(self, graph: Graph, op: Op, inputs: Sequence[Array | None]) -> Integers | None:
        """Compute the integers of an operator's kernel for stored inputs, None for those absent or unknown; None without a reference."""
        row = self.of(graph, op) if inputs and inputs[0] is not None else None
        return row.compute_integers(graph, op, inputs) if row is not None else None

    def compute_stored(self, graph: Graph, op: Op, inputs: Sequence[Array | None]) -> Array | None:
        """Compute the stored result of an operator by its kernel's reference, for evaluate(); None without one."""
        found = self.integers(graph, op, inputs)
        return found.ways[0] if found is not None else None
