"""fuse_functions: functions that an exporter decomposed become one operator again, if the target's format has it.

Gelu, HardSwish, Swish, Mish, LayerNormalization and others, on real or quantized values, in whichever order they are written. Exact in real
numbers; a kernel for the whole may give another last bit of a float.

A decomposed operator is found by the formula that decomposes it. The formula is run on symbols, and what it computes is compared with what
the graph computes, as normal forms (rewriting/normal_forms.py): exporters write x / 2 * (1 + erf(x / sqrt(2))) in a dozen orders. The
arguments of the formula are tried: its data are a tensor from which the result is computed, its parameters constants of the operators
between, its attributes numbers and axes found there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from qconvert.errors import format_counts
from qconvert.graph import Graph, Op, Tensor, count_kinds
from qconvert.operators import KINDS, Kind, kind_of
from qconvert.operators.formulas import FORMULAS, Formula
from qconvert.operators.properties import REDUCES
from qconvert.plugins import PassResult, Target, operators
from qconvert.rewriting import Rewriter, dequantized_source
from qconvert.rewriting.lowering import emit_formula, legality
from qconvert.rewriting.normal_forms import Form, Forms, TooLargeError, words_of

#: Operators on the longest way through a decomposition.
_DEPTH = 10
#: So many combinations of data, parameters and attributes are tried for one result.
_MOST_TRIES = 200


class _Way(NamedTuple):
    """A formula with the attributes that choose between its forms.

    Attributes:
        formula: the formula.
        kind: of the operator that it decomposes.
        choices: these attributes.
        words: the functions of its normal forms, one set for each form.
    """

    formula: Formula
    kind: Kind
    choices: Mapping[str, Any]
    words: frozenset[frozenset[str]] = frozenset()

    @property
    def functions(self) -> frozenset[str]:
        """Those that every such decomposition has."""
        return frozenset.intersection(*self.words)


class Recognizer:
    """Finds decomposed operators in a graph.

    Args:
        graph: functions are graphs of their own.
        kinds: to look for, which have formulas.
    """

    def __init__(self, graph: Graph, kinds: Iterable[str]) -> None:
        self._graph, self._producers, self._readers = graph, graph.producers(), graph.consumers()
        self._ways = [way for kind in kinds for formula in FORMULAS.get(kind, ()) for way in _ways(formula)]
        self._words = {word for op in graph.ops for word in words_of(op)}

    def find_operators(self) -> Iterator[tuple[Op, Op]]:
        """Yield the last operator of each decomposition and the operator that it computes, last first; none is a part of another."""
        ways = [way for way in self._ways if way.functions and way.functions <= self._words]
        if not ways:
            return
        wanted = frozenset().union(*(way.functions for way in ways))
        ends: dict[int, Op] = {}
        for op in self._graph.ops:
            if wanted.intersection(words_of(op)) and not self._graph[op.name].is_quantized:
                ends.update((id(end), end) for end in self._ends_of(op))
        parts: set[int] = set()
        for end in (op for op in reversed(self._graph.ops) if id(op) in ends and id(op) not in parts):
            found = self._match_any(end, ways)
            if found is not None:
                parts.update(map(id, self._find_inner_ops(found, end)))
                yield end, found

    def _ends_of(self, op: Op) -> Iterator[Op]:
        """Yield the operators that may end the decomposition that one is in."""
        level = [op]
        for _ in range(_DEPTH):
            level = [reader for item in level for reader in self._readers[item.name] if reader.outputs][:_DEPTH]
            yield from (reader for reader in level if kind_of(reader).affine is not None)
            level = [reader for reader in level if not self._graph[reader.name].is_quantized]

    def _find_inner_ops(self, found: Op, end: Op) -> Iterator[Op]:
        """Yield the operators of a decomposition but for its end."""
        waiting, seen = list(end.inputs), set(found.inputs)
        while waiting:
            name = waiting.pop()
            if name not in seen and name in self._producers:
                yield self._producers[name]
                waiting += self._producers[name].inputs
            seen.add(name)

    def _match_any(self, end: Op, ways: Sequence[_Way]) -> Op | None:
        cone = self._cone(end)
        there = {word for item in cone if item in self._producers for word in words_of(self._producers[item])} | words_of(end)
        for way in ways:
            if way.functions <= there:
                found = self._match_formula(end, cone, way)
                if found is not None:
                    return found
        return None

    def _cone(self, end: Op) -> list[str]:
        """Return the tensors from which a result is computed by float values alone, the nearest first, constants too."""
        found: dict[str, None] = {}
        level = [name for name in end.inputs if name]
        for _ in range(_DEPTH):
            found.update(dict.fromkeys(level))
            inner = [self._producers[name] for name in level if name in self._producers and not self._graph[name].is_quantized]
            level = [name for op in inner for name in op.inputs if name and name not in found]
        return list(found)

    def _match_formula(self, end: Op, cone: Sequence[str], way: _Way) -> Op | None:
        """Return the operator of a formula's kind that a result is; None if it is none."""
        graph, result = self._graph, self._graph[end.name]
        forms, tries = Forms(), 0
        constants = [name for name in cone if graph[name].data is not None and not graph[name].is_quantized]
        numbers, axes, inside = self._numbers(constants), self._axes(cone), frozenset(cone)
        for data in cone:
            tensor = graph[data]
            if tensor.data is not None or tensor.shape != result.shape or ("float" not in tensor.dtype and not tensor.is_quantized):
                continue
            try:
                leaf = forms.atom("leaf")
                wanted = forms.of(result.name, graph.tensors, self._producers, {data: leaf}, inside)
            except (TooLargeError, OverflowError, ZeroDivisionError):
                continue
            read = forms.tensors(wanted)
            if not forms.depends(wanted, leaf) or not read <= set(constants) or forms.words(wanted) not in way.words:
                continue  # it is computed of something else too, or by other functions
            for attributes in _attributes(way, numbers, axes, tensor.rank or 0):
                for chosen in _parameters(way.kind, sorted(read)):
                    tries += 1
                    if tries > _MOST_TRIES:
                        return None
                    if self._has_same_form(way, data, chosen, attributes, forms, wanted):
                        source = dequantized_source(self._producers, data) or data
                        return replace(end, kind=way.kind.name, inputs=(source, *chosen), attributes=attributes)
        return None

    def _has_same_form(
        self, way: _Way, data: str, chosen: Sequence[str], attributes: Mapping[str, Any], forms: Forms, wanted: Form
    ) -> bool:
        tensors = {name: replace(self._graph[name], quantization=None) for name in (data, *chosen)}
        tensors[data] = replace(tensors[data], dtype="float32")
        tensors["result"] = Tensor("result", "float32", tensors[data].shape)
        try:
            form = _form_of(way.formula, tensors, (data, *chosen), attributes, forms)
        except (TooLargeError, OverflowError, ZeroDivisionError):
            return False
        return form is not None and forms.same(form, wanted)

    def _numbers(self, constants: Sequence[str]) -> list[float]:
        """Return the single numbers among constants, the nearest to the result first."""
        found = (self._graph[name].data for name in constants)
        numbers = [float(data.flat[0]) for data in found if data is not None and data.size == 1 and data.dtype.kind == "f"]
        return list(dict.fromkeys(numbers))

    def _axes(self, cone: Sequence[str]) -> list[int]:
        """Return the first axes of the reductions on the way."""
        ops = (self._producers[name] for name in cone if name in self._producers)
        found = [self._graph[op.inputs[1]].data for op in ops if kind_of(op).layout is REDUCES and op.has(1)]
        return list(dict.fromkeys(int(data.reshape(-1).min()) for data in found if data is not None and data.size))


def _ways(formula: Formula) -> Iterator[_Way]:
    """Yield the forms of a formula between which attributes choose."""
    kind = KINDS[formula.kind]
    specs = {name: spec for name, spec in kind.attributes.items() if name in formula.parameters and spec.choices}
    names = [f"input_{place}" for place in range(kind.inputs[0])]
    tensors = {name: Tensor(name, "float32", (2, 2, 2) if place == 0 else (2,)) for place, name in enumerate(names)}
    tensors["result"] = Tensor("result", "float32", (2, 2, 2))
    for values in itertools.product(*(spec.choices for spec in specs.values())):
        choices = dict(zip(specs, values, strict=True))
        words: set[frozenset[str]] = set()
        for attributes in _attributes(_Way(formula, kind, choices), [0.5], [-1], 3):
            forms = Forms()
            form = _form_of(formula, tensors, names, attributes, forms)
            if form is not None:
                words.add(forms.words(form))
        if words:
            yield _Way(formula, kind, choices, frozenset(words))


def _form_of(
    formula: Formula, tensors: Mapping[str, Tensor], inputs: Sequence[str], attributes: Mapping[str, Any], forms: Forms
) -> Form | None:
    """Return the normal form of a formula's "result", whose data are the leaf; None where the formula does not hold."""
    found = emit_formula(tensors, Op(formula.kind, tuple(inputs), ("result",), attributes), formula, "float32")
    if found is None:
        return None
    producers = {name: op for op in found.ops for name in op.outputs}
    return forms.of("result", {**tensors, **found.tensors}, producers, {inputs[0]: forms.atom("leaf")})


def _attributes(way: _Way, numbers: Sequence[float], axes: Sequence[int], rank: int) -> Iterator[dict[str, Any]]:
    """Yield the attributes that a decomposed operator may have: defaults, and numbers and axes that stand in the decomposition."""
    given: list[list[tuple[str, Any]]] = []
    for name, spec in way.kind.attributes.items():
        if name in way.choices or name not in way.formula.parameters:
            continue
        values: list[Any] = [spec.default] if isinstance(spec.default, int | float | str) else []
        if spec.sort == "number":
            values = [*dict.fromkeys((*values, *numbers))]
        elif name == "axis":
            values = [*dict.fromkeys(axis - rank if axis >= 0 else axis for axis in axes)]
        given.append([(name, value) for value in values])
    for chosen in itertools.product(*given):
        yield {**way.choices, **dict(chosen)}


def _parameters(kind: Kind, constants: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the constants as the further inputs of a decomposed operator, in any order, if it may have so many."""
    least, most = kind.inputs
    if least - 1 <= len(constants) <= most - 1:
        yield from itertools.permutations(constants)


def fuse_functions(graph: Graph, target: Target | None) -> PassResult:
    """Replace the last operator of each decomposition; parts with other readers stay."""
    writers = operators(target.format, "write") if target is not None else {}
    legal = legality(writers)
    sought = [kind for kind, formulas in FORMULAS.items() if any(formula.is_sought for formula in formulas)]
    sought.sort(key=lambda kind: -KINDS[kind].inputs[1])  # those with more parameters first, as parts of one may look like another
    kinds = [kind for kind in sought if target is None or kind in writers]
    rewriter = Rewriter(graph)
    done: list[Op] = []
    for end, found in Recognizer(graph, kinds).find_operators():
        if target is None or not legal(graph.tensors, found):
            rewriter.replace(end, found)
            done.append(found)
    if not done:
        return graph, ()
    return rewriter.finish(prune=True), (f"decomposed functions are one operator each: {format_counts(count_kinds(done))}",)
