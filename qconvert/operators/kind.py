"""What one kind of operator is: everything that is true of every operator of that kind, in one object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from qconvert.arithmetic.polynomials import Polynomial
from qconvert.arithmetic.storage import DTYPES, Array
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.operators.attributes import REQUIRED, AttributeSpec
from qconvert.operators.call import Fold, Function, movement_fold
from qconvert.operators.properties import (
    ANY,
    FIRST,
    MIXES,
    PINNED,
    WHEREVER,
    AxisRule,
    Bounds,
    Domain,
    FunctionCall,
    Interval,
    Layout,
    MatchingSizes,
    Operands,
    Preimage,
    Running,
    Samples,
    Suits,
    any_value,
    same_axes,
    within_data,
)
from qconvert.operators.sizes import Rule as ShapeRule

#: The rule that an operator or a tensor breaks, as errors name it, and the reason.
Broken = tuple[str, str]

#: What an input is to an operator. Only data have the operator's layout; data, factors and fillers have its quantization.
ROLES: Mapping[str, str] = {
    "data": "values that the operator computes on or moves",
    "factor": "the second operand of a product, data or weights",
    "weights": "factors, O,I,spatial, quantized along their outputs (axis 0)",
    "bias": "is added to the sum of products: int32 at data scale * weight scale, or float",
    "filler": "one value that is inserted into the data: what a Pad fills with",
    "parameter": "further floats: statistics, bounds",
    "zero_point": "the zero point of another input, where an operator takes it as an input",
    "index": "plain integers: shapes, axes, indices",
    "condition": "one bool that decides what runs",
}

#: How quantization goes through an operator.
RULES: Mapping[str, str] = {
    "real": "the function of the dequantized inputs, rounded once to the output's quantization",
    "move": "data movement, stored integers are never changed: data inputs and outputs have equal quantization",
    "convert": "Quantize, Dequantize, Requantize: between floats and quantized values",
    "index": "inputs may be quantized, outputs are plain integers (ArgMax, comparisons)",
    "relabel": "Reinterpret: the same stored integers under another quantization, where a source's kernel does this",
    "plain": "nothing is quantized",
    "state": "reads or writes a value kept between runs: stored values are unchanged, with the state's quantization",
    "control": "runs functions of the graph: stored values are passed in and out unchanged, with equal quantization on both sides",
    "stored": "a function of the stored integers themselves, whose quantization parameters belong to the operator and must not change",
    "opaque": "nothing is known: stored values are unchanged",
}

#: The same operator in the one form that comparisons know: (graph, operator, where new constants go) -> operator.
Canonical = Callable[[Graph, Op, dict[str, Tensor]], Op]
#: Factor and constant of an operator on data and a constant: (place of the constant, its values) -> both; None where it has no such form.
Affine = Callable[[int, Any], tuple[Any, Any] | None]
#: How many products an operator sums in one run: (operator, sizes of its inputs, sizes of its first output) -> number.
Products = Callable[[Op, Sequence[tuple[int, ...]], tuple[int, ...]], int]
#: By how much each element may be off: (operator with its stored inputs) -> as many elements.
Bounded = Callable[..., Array]
#: The functions of the graph that an operator runs.
Calls = Callable[[Op], Iterable[FunctionCall]]
#: (operator, tensor by its name) -> the rule of its kind alone that its tensors break; None if they break none.
TensorRule = Callable[[Op, Callable[[str], Tensor]], Broken | None]


#: The default of what follows from the other fields.
_IMPLIED: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Everything that is true of every operator of one kind.

    Attributes:
        name: the kind, as in Op.kind.
        takes: the roles (see ROLES) of the inputs, separated by spaces; "?" after one makes it optional, "..." stands for any number of
            it, at least one, and "...?" for any number at all. "data weights bias?" is a convolution.
        gives: likewise of the outputs, of "data" and "index".
        roles: the role of each input, by `takes`; the last one is that of all further inputs too.
        inputs: fewest and most inputs, by `takes`; most -1 means any number.
        outputs: likewise, by `gives`.
        results: how many leading outputs hold data, by `gives`; -1 means all. The others are plain numbers, such as TopK's indices.
        rule: how quantization goes through it (see RULES).
        shape: gives a shape for each output: (operator, what it sees of its inputs) -> shapes. See operators/sizes.py.
        evaluate: the exact meaning: stored inputs -> float values, or stored ones where nothing is rounded. None for an Opaque, and for
            what means something within a graph alone: states, and operators that run functions (see `run`).
        fold: the same where every runtime gives the same bits, or None where it is not sure to; None if it never is. That of a move by
            place follows.
        layout: how it takes part in a change of layout.
        keeps_axis: of a move: whether scales along an axis survive it. None means that they do not.
        samples: what it does with the samples of a batch. Elementwise kinds keep them apart, wherever they stand, and spatial kinds have
            them first; every other kind says so.
        bounds: between which float values its results lie. A move gives values of its data; a kind whose rule is "real" says so.
        domain: which values it takes; None: all.
        preimage: which values of its data give results within an interval; None: nothing is known, or its other fields say it.
        matching_sizes: which sizes of its inputs are one number; None: broadcasting says it, or nothing does.
        products: how many products it sums in one run; None: none. A kind with weights or factors says so.
        weights: the inputs that may be integer weights next to real data (dynamic range).
        polynomial: its result as a polynomial of integers that are known only at run time; of a reduction, of all that become one. None:
            shapes are not computed with it.
        by_place: whether each element of the result comes from a place that no value of its data decides (Reshape, Concat; not MaxPool).
        canonical: gives the form in which two graphs are compared, where a kind has several ways to say one thing; None: it has one.
        calls: the functions that it runs; by default none.
        run: how it runs them: (what it is while it runs, stored inputs) -> stored outputs. None for all else.
        tensor_rule: what it demands of its tensors that no other field says; None: nothing.
        chooses: whether each element of the result is an element of its data, although several quantizations may meet (Max, Concat, Where).
        quantizes: whether it rounds float values to stored ones (Quantize).
        dequantizes: whether it gives the float values of stored ones (Dequantize).
        picks: 1 if each element of the result is the larger of two (Max), -1 if it is the smaller (Min), 0 of all else.
        clips: whether each element of the result is that of its data, or an end of a range (Relu, Clip).
        nearby: whether it is that of its data, or a number next to it (Floor, Cast).
        rounds_once: whether it is one operation of IEEE 754, whose exact result is rounded once, or not at all (Add, Relu, MaxPool).
        averages: whether each element of the result is a sum of data, or their mean (AveragePool, ReduceSum).
        keeps_range: whether its results lie in the range of its data, so that by convention they share its quantization.
        scales_channels: whether each channel is computed by itself, with f(s * x) = s * f(x) for s > 0 (Relu, MaxPool).
        spreads: whether its weights spread each element of its data over a window of the result, so that the sums of one channel differ in
            which of the weights they have (ConvTranspose).
        ranks: whether its results say the place of values among others (ArgMax).
        reads_shape: whether it takes nothing but the shape of its input (Shape).
        lists_sizes: whether its result are the sizes of its data (Shape), so that it is known without their values.
        compares: whether its results say nothing but which of its data are larger or equal (Less, ArgMax), so that integers that share a
            quantization give them too.
        affine: of an operator on data and a constant: (place of the constant, its values) -> the factor of the data and what is added to
            them; None where the result is no such sum, or for all of its operators.
        sum_sign: 1 of a sum of two operands, -1 of a difference, 0 of all else.
        product_sign: 1 of a product of two operands, -1 of a quotient, 0 of all else.
        power: of functions that are a power of their data, which one (2 of Square, -0.5 of Rsqrt); 0 of all else.
        cancels_below: of functions whose float kernels lose digits where terms cancel: how large a result is taken to be at least where
            those of two runtimes are compared.
        cancellation: by how much float32 may make each element of the result off where terms cancel, in float values; None: nothing does,
            or other fields say it.
        float_kind: of sums of products of plain integers, the kind that sums those of the numbers they stand for (Conv of ConvInteger).
        recurs: whether its data after the first are its states, and its results after the first their next values (LSTM, SVDF).
        attributes: every attribute.
        types: the storage types of its inputs and outputs as words, such as "bool bool -> bool" or "T any -> T"; "" where the rule alone
            says which go together. See operators/typing.py.
    """

    name: str
    takes: str = "data"
    gives: str = "data"
    _: KW_ONLY
    shape: ShapeRule
    rule: str = "real"
    evaluate: Function | None = None
    fold: Fold | None = _IMPLIED
    layout: Layout = PINNED
    keeps_axis: AxisRule | None = None
    samples: Samples = _IMPLIED
    bounds: Bounds = _IMPLIED
    domain: Domain | None = None
    preimage: Preimage | None = None
    matching_sizes: MatchingSizes | None = None
    products: Products | None = None
    polynomial: Callable[..., Polynomial | None] | None = None
    by_place: bool = _IMPLIED
    weights: tuple[int, ...] = _IMPLIED
    canonical: Canonical | None = None
    calls: Calls = lambda op: ()
    run: Callable[[Running, list[Any]], list[Array]] | None = None
    tensor_rule: TensorRule | None = None
    chooses: bool = False
    picks: int = 0
    quantizes: bool = False
    dequantizes: bool = False
    clips: bool = False
    nearby: bool = False
    rounds_once: bool = False
    averages: bool = False
    keeps_range: bool = _IMPLIED
    scales_channels: bool = False
    spreads: bool = False
    ranks: bool = False
    reads_shape: bool = False
    lists_sizes: bool = False
    compares: bool = False
    affine: Affine | None = None
    sum_sign: int = 0
    product_sign: int = 0
    power: float = 0.0
    cancels_below: float = 0.0
    cancellation: Bounded | None = None
    float_kind: str = ""
    recurs: bool = False
    attributes: Mapping[str, AttributeSpec] = field(default_factory=dict)
    types: str = ""
    roles: tuple[str, ...] = field(init=False)
    inputs: tuple[int, int] = field(init=False)
    outputs: tuple[int, int] = field(init=False)
    results: int = field(init=False)

    def __post_init__(self) -> None:
        """Fill in what follows from the other fields.

        Raises:
            ValueError: a role or rule is unknown, or a field is lacking that the rule does not imply.
        """
        name, rule = self.name, self.rule
        roles, inputs = _parse_roles(self.takes)
        given, outputs = _parse_roles(self.gives)
        unknown = {*roles, *given} - {*ROLES}
        if unknown or rule not in RULES:
            raise ValueError(f"{name}: no such role or rule: {', '.join(sorted(unknown)) or rule}")
        fields = {"roles": roles, "inputs": inputs, "outputs": outputs, "results": given.index("index") if "index" in given else -1}
        if self.samples is _IMPLIED:
            fields["samples"] = _implied_samples(name, rule, self.layout)
        if self.bounds is _IMPLIED:
            if rule == "real":
                raise ValueError(
                    f"{name}: lacks bounds, between which values its results lie: any_value, if nothing is known (operators/properties.py)"
                )
            fields["bounds"] = within_data if rule in ("move", "convert") else any_value
        multiplies = rule == "real" and bool({"weights", "factor"}.intersection(roles))
        if multiplies and self.products is None:
            raise ValueError(f"{name}: has weights or factors and lacks products, how many of them it sums (operators/products.py)")
        implied = {"weights": (1,) if multiplies else (), "keeps_range": rule == "move", "by_place": rule == "move"}
        fields |= {item: value for item, value in implied.items() if getattr(self, item) is _IMPLIED}
        if self.fold is _IMPLIED:
            by_place = fields.get("by_place", self.by_place)
            fields["fold"] = movement_fold(self.evaluate) if by_place and self.evaluate is not None else None
        for item, value in fields.items():
            object.__setattr__(self, item, value)

    def role(self, index: int) -> str:
        """The role of input `index`."""
        return self.roles[min(index, len(self.roles) - 1)] if self.roles else "data"

    def _roles(self, op: Op) -> tuple[str, ...]:
        """The role of each input of `op` in turn, and those of absent inputs after the last."""
        own = self.roles or ("data",)
        return own if len(op.inputs) <= len(own) else (*own, *own[-1:] * (len(op.inputs) - len(own)))

    def positions(self, op: Op, *roles: str) -> list[int]:
        """Indices of the inputs of `op` that have one of the roles, absent ones too."""
        return [index for index, role in zip(range(len(op.inputs)), self._roles(op), strict=False) if role in roles]

    def inputs_with_role(self, op: Op, *roles: str) -> list[str]:
        """Names of the inputs of `op` that have one of the roles; absent ones are left out."""
        return [name for name, role in zip(op.inputs, self._roles(op), strict=False) if name and role in roles]

    def data(self, op: Op) -> list[str]:
        """The inputs with values to compute on or to copy: no weights, biases, shapes or indices."""
        return self.inputs_with_role(op, "data", "factor")

    def moved_inputs(self, op: Op) -> list[str]:
        """The inputs whose stored values data movement copies to the outputs: the data, and what fills gaps."""
        return self.inputs_with_role(op, "data", "factor", "filler")

    def joins(self, op: Op) -> bool:
        """Whether it is data movement that puts several data together (Pack, ScatterND)."""
        return self.rule == "move" and len(self.data(op)) > 1

    def next_state(self, op: Op, index: int) -> str:
        """The output with the next value of the state that input `index` is; "" if it is none, or nobody reads it."""
        places = self.positions(op, "data")[1:] if self.recurs else []
        place = places.index(index) + 1 if index in places else 0
        return op.outputs[place] if 0 < place < len(op.outputs) else ""

    def results_of(self, op: Op) -> tuple[str, ...]:
        """The outputs that hold data."""
        return op.outputs if self.results < 0 else op.outputs[: self.results]

    @property
    def has_weights(self) -> bool:
        """Whether the second input are weights, O,I,spatial: Conv, ConvTranspose, Gemm."""
        return self.rule == "real" and "weights" in self.roles

    @property
    def sums_products(self) -> bool:
        """Whether it adds products of its data and weights or factors in an accumulator."""
        return self.rule == "real" and ("weights" in self.roles or "factor" in self.roles)

    @property
    def sums_all_weights(self) -> bool:
        """Whether each of its sums has all weights of an output channel, so that a shift of the data adds one number to them."""
        return self.sums_products and not self.spreads

    @property
    def convolves(self) -> bool:
        """Whether each of its results is the sum of the products of a window of its data and all weights of a channel (Conv)."""
        return self.has_windows and self.sums_all_weights

    @property
    def is_matrix_product(self) -> bool:
        """Whether it multiplies rows of its data by a matrix (Gemm, MatMul)."""
        return self.sums_products and self.layout.suits is Suits.PINNED

    @property
    def keeps_order(self) -> bool:
        """Whether the result has the same elements in the same order, in a shape that an input says (Reshape, Squeeze, Unsqueeze)."""
        return self.keeps_axis is same_axes and "index" in self.roles

    @property
    def keeps_elements(self) -> bool:
        """Whether the result has the elements of its data, all of them, in another shape or order (Reshape, Transpose)."""
        return self.keeps_order or self.transposes

    @property
    def transposes(self) -> bool:
        """Whether the result has the elements of its data in another order of axes (Transpose)."""
        return self.layout.suits is Suits.TRANSPOSES

    @property
    def casts(self) -> bool:
        """Whether the result is its data in another type (Cast)."""
        return self.nearby and "to" in self.attributes

    @property
    def copies(self) -> bool:
        """Whether the result is its data, under another name (Identity)."""
        return self.rule == "move" and self.layout.suits is Suits.BROADCASTS and self.inputs == (1, 1)

    @property
    def keeps_values(self) -> bool:
        """Whether the result has the values of all elements of its data, in another type, quantization, shape or order, or under another
        name (Dequantize, Reshape, Transpose, Identity)."""
        return self.rule == "convert" or self.keeps_elements or self.copies

    @property
    def requantizes(self) -> bool:
        """Whether it brings stored values to another quantization (Requantize)."""
        return self.rule == "convert" and not (self.quantizes or self.dequantizes)

    @property
    def commutes(self) -> bool:
        """Whether its two operands may change places (Add, Mul)."""
        return self.affine is not None and self.affine(0, 2.0) == self.affine(1, 2.0)

    @property
    def normalizes(self) -> bool:
        """Whether it takes off a mean, divides by a deviation, and scales by parameters (BatchNormalization, LayerNormalization)."""
        return "epsilon" in self.attributes

    @property
    def is_structural(self) -> bool:
        """Whether it means something within a graph alone: a state, functions that it runs, or nothing that is known (Opaque)."""
        return self.rule in ("state", "control", "opaque")

    @property
    def takes_stored(self) -> bool:
        """Whether the stored integers themselves matter to it, or it passes them on unseen, whatever they stand for."""
        return self.is_structural or self.rule in ("plain", "stored")

    @property
    def reads_state(self) -> bool:
        """Whether its result is the value of a state."""
        return self.rule == "state" and not self.has_effect

    @property
    def has_effect(self) -> bool:
        """Whether it does something that no output shows: writing a state."""
        return self.rule == "state" and self.outputs == (0, 0)

    @property
    def rounds(self) -> bool:
        """Whether it computes float values that a quantized output rounds."""
        return self.rule in ("real", "convert")

    @property
    def has_windows(self) -> bool:
        """Whether it computes on windows of its data, which strides make fewer than these (Conv, MaxPool)."""
        return "auto_pad" in self.attributes

    def operands(self, graph: Graph, op: Op, found: Mapping[str, Interval]) -> Operands:
        """What is known of the inputs of `op`; `found` has their intervals by name."""
        tensors = tuple(graph[name] if name else None for name in op.inputs)
        intervals = tuple(found[name] if name else ANY for name in op.inputs)
        return Operands(op, tensors, intervals, tuple(found[name] for name in self.moved_inputs(op)))

    def interval(self, graph: Graph, op: Op, found: Mapping[str, Interval] | None = None) -> Interval:
        """Between which float values the results of `op` lie, before its activation.

        Args:
            graph, op: an operator of this kind.
            found: the intervals of its inputs by name; None where they may have any value.
        """
        return self.bounds(self.operands(graph, op, dict.fromkeys(op.inputs, ANY) if found is None else found))

    def limits(self, op: Op, constant: Callable[[str], Array | None]) -> tuple[float | None, float | None] | None:
        """Between which numbers `op` clips its data, None at an open end.

        None if it does not clip, or a number is known only when it runs.

        Args:
            op: an operator of this kind.
            constant: name of an input -> its values, or None.
        """
        if not self.clips:
            return None
        known = {name: constant(name) for name in op.inputs[1:] if name}
        numbers = [float(data.flat[0]) for data in known.values() if data is not None and data.size == 1]
        if len(numbers) < len(known) or not all(a <= b for a, b in pairwise((-math.inf, *numbers, math.inf))):
            return None
        intervals = {name: (number, number) for name, number in zip(known, numbers, strict=True)}
        tensors = tuple(Tensor(name, "float32", ()) if name else None for name in op.inputs)
        low, high = self.bounds(Operands(op, tensors, tuple(intervals.get(name, ANY) for name in op.inputs), (ANY,)))
        if low == math.inf or high == -math.inf:
            return None
        return (None if low == -math.inf else low), (None if high == math.inf else high)

    @property
    def fuses_activation(self) -> bool:
        """Whether kernels clip its result by the attribute `activation`. A Concat has it in TFLite's schema, and no kernel uses it."""
        return "activation" in self.attributes and not self.chooses

    def problems(self, op: Op) -> Iterator[Broken]:
        """What is wrong with the inputs, outputs and attributes of an operator of this kind, whatever its tensors are."""
        for what, given, (fewest, most) in (("inputs", op.inputs, self.inputs), ("outputs", op.outputs, self.outputs)):
            if len(given) < fewest or 0 <= most < len(given):
                wanted = f"at least {fewest}" if most < 0 else str(fewest) if fewest == most else f"{fewest} to {most}"
                yield "wrong-number-of-tensors", f"has {len(given)} {what[: -1 if len(given) == 1 else None]}, not {wanted}"
        needed = self.inputs[0] if self.inputs[1] >= 0 or self.rule in ("opaque", "control") else len(op.inputs)
        for index, name in enumerate(op.inputs[:needed]):
            if not name:
                yield "input-missing", f"lacks input {index}, which is not optional"
        for index, name in enumerate(op.outputs[: self.outputs[0]]):
            if not name:
                yield "output-missing", f"gives output {index}, which is not optional, no name"
        for name in op.attributes:
            if name not in self.attributes:
                yield "unknown-attribute", f"has the attribute {name!r}, which its kind does not have"
        for name, attribute in self.attributes.items():
            if name in op.attributes:
                problem = attribute.problem(op.attributes[name])
                if problem:
                    yield "attribute-value", f"has {op.attributes[name]!r} as attribute {name!r}; it must be {problem}"
            elif attribute.default is REQUIRED:
                yield "attribute-missing", f"lacks the attribute {name!r}"

    @property
    def result_type(self) -> str:
        """The one storage type that output 0 has in every operator of this kind; "" if it depends on the operator."""
        word = self.types.partition("->")[2].split()[:1]
        return word[0] if word and word[0] in DTYPES else ""

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of every attribute that has one."""
        return {name: spec.default for name, spec in self.attributes.items() if spec.default is not REQUIRED}


def _implied_samples(name: str, rule: str, layout: Layout) -> Samples:
    """What the layout says of samples: each element of a result belongs to one sample where operands are broadcast; data that have a
    channel axis have the samples first."""
    if layout.suits is Suits.BROADCASTS:
        return WHEREVER
    if layout.suits is Suits.DECIDES:
        return FIRST
    if rule in ("control", "state", "opaque"):
        return MIXES
    raise ValueError(f"{name}: lacks samples, what it does with the samples of a batch: MIXES, if unknown (operators/properties.py)")


@cache
def _parse_roles(text: str) -> tuple[tuple[str, ...], tuple[int, int]]:
    """The roles in a text such as "data weights bias?", and the fewest and most there may be."""
    words: Sequence[str] = text.split()
    required = sum(not word.endswith("?") for word in words)
    open_ended = any("..." in word for word in words)
    return tuple(word.rstrip("?").removesuffix("...") for word in words), (required, -1 if open_ended else len(words))
