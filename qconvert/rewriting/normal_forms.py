"""Normal forms of float computations: what is computed, whatever the order in which an exporter writes it.

A form is a polynomial with real coefficients over atoms: tensors at which the search stops, and functions (Erf, ReduceMean, a clipped
value ...) of polynomials. So commutativity, associativity, distribution, division by constants, Pow, Square and Sqrt make no difference.
Forms are of real numbers: x / x is 1, and sqrt takes what is not negative. They do not see broadcasting, so who compares forms compares
shapes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.graph import Array, Op, Tensor, drop_keys
from qconvert.graph.activations import activation_bounds, interval_of
from qconvert.operators import Kind, kind_of
from qconvert.operators.properties import REDUCES

#: A polynomial: {((atom, power), ...): coefficient}; () is the key of the constant term.
Form = dict[tuple[tuple[int, float], ...], float]

_MOST_TERMS = 16
_TOLERANCE = 1e-6


class TooLargeError(Exception):
    """A polynomial has more terms than any decomposition needs."""


@dataclass
class Forms:
    """Normal forms that can be compared: equal atoms have one number.

    Attributes:
        atoms: what each stands for: a word, and what it is a function of.
    """

    atoms: list[tuple[Any, ...]] = field(default_factory=list)

    def atom(self, *key: Any) -> Form:
        """Return the form that is one atom."""
        for number, known in enumerate(self.atoms):
            if self._is_close(key, known):
                return {((number, 1.0),): 1.0}
        self.atoms.append(key)
        return {((len(self.atoms) - 1, 1.0),): 1.0}

    def same(self, a: Form, b: Form) -> bool:
        """Whether two forms are equal; their numbers may differ in the last bits of float32."""
        return a.keys() == b.keys() and all(self._is_close(a[key], b[key]) for key in a)

    def _is_close(self, a: Any, b: Any) -> bool:
        if isinstance(a, dict):
            return isinstance(b, dict) and self.same(a, b)
        if isinstance(a, tuple):
            return isinstance(b, tuple) and len(a) == len(b) and all(map(self._is_close, a, b))
        return math.isclose(a, b, rel_tol=_TOLERANCE) if isinstance(a, float) and isinstance(b, float) else bool(a == b)

    def tensors(self, form: Form) -> set[str]:
        """Return the tensors at which the search for a form stopped."""
        return {str(atom[1]) for atom in self._collect_atoms(form) if atom[0] == "tensor"}

    def words(self, form: Form) -> frozenset[str]:
        """Return the functions in a form."""
        return frozenset(str(atom[0]) for atom in self._collect_atoms(form)) - {"leaf", "tensor", "base"}

    def depends(self, form: Form, leaf: Form) -> bool:
        """Whether the atom `leaf` is in a form."""
        (((number, _),),) = leaf
        return any(atom is self.atoms[number] for atom in self._collect_atoms(form))

    def _collect_atoms(self, form: Form) -> list[tuple[Any, ...]]:
        """Return the atoms of a form, and those of the forms that they are functions of."""
        found: list[tuple[Any, ...]] = []
        waiting = [form]
        while waiting:
            for number in {atom for key in waiting.pop() for atom, _ in key}:
                if self.atoms[number] not in found:
                    found.append(self.atoms[number])
                    waiting += [part for part in self.atoms[number] if isinstance(part, dict)]
        return found

    def of(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        producers: Mapping[str, Op],
        leaves: Mapping[str, Form],
        within: Container[str] | None = None,
    ) -> Form:
        """Return the form of a tensor.

        Args:
            name: of the tensor.
            tensors, producers: of its graph.
            leaves: tensors at which the search stops, with their forms; it stops at inputs, at constants that are not single numbers and at
                quantized tensors too, which were rounded.
            within: the tensors that are looked into; all by default. So the search has an end in networks of any depth.

        Raises:
            TooLargeError: it has too many terms.
        """
        known = dict(leaves)

        def visit(item: str) -> Form:
            if item not in known:
                is_rounded = tensors[item].is_quantized and item != name
                is_outside = within is not None and item != name and item not in within
                known[item] = self.atom("tensor", item) if is_rounded or is_outside else self._compute_form(item, tensors, producers, visit)
            return known[item]

        return visit(name)

    def _compute_form(self, name: str, tensors: Mapping[str, Tensor], producers: Mapping[str, Op], visit: Callable[[str], Form]) -> Form:
        data, op = tensors[name].data, producers.get(name)
        if data is not None and data.size == 1 and data.dtype.kind in "fiu":
            number = float(np.asarray(data).reshape(-1)[0])
            return {(): number} if number else {}
        if op is None:
            return self.atom("tensor", name)
        form = self._operator_form(op, name, tensors, visit)
        bounds = activation_bounds(op)
        return form if bounds == (None, None) else self._clip(form, *interval_of(bounds))

    def _operator_form(self, op: Op, name: str, tensors: Mapping[str, Tensor], visit: Callable[[str], Form]) -> Form:
        """Return the form of an operator without its activation."""
        kind, items = kind_of(op), [item for item in op.inputs if item]
        if not items:
            return self.atom("tensor", name)
        if kind.layout is REDUCES:
            return self._reduction(kind, op, tensors, visit)
        data, *others = (visit(item) for item in items)
        if kind.copies or kind.dequantizes or (kind.casts and all("float" in tensors[item].dtype for item in (items[0], name))):
            return data
        if kind.power:
            return self._power(data, kind.power)
        if kind.sum_sign:
            return _sum(data, others[0], float(kind.sum_sign))
        if kind.product_sign:
            return _product(data, others[0] if kind.product_sign > 0 else self._power(others[0], -1.0))
        if kind.name == "Neg":
            return _scale(data, -1.0)
        if kind.name == "SquaredDifference":
            return self._power(_sum(data, others[0], -1.0), 2.0)
        if kind.name == "Pow" and set(others[0]) <= {()}:
            return self._power(data, others[0].get((), 0.0))
        if kind.name == "HardSigmoid":
            return self._clip(_sum(_scale(data, float(op["alpha"])), {(): float(op["beta"])}), 0.0, 1.0)
        if (limits := _numbers(kind, op, visit)) is not None:
            return self._clip(data, *limits)
        attributes = tuple(sorted(drop_keys(op.attributes, "activation").items()))
        return self.atom(kind.name, attributes, op.outputs.index(name), data, *others)

    def _reduction(self, kind: Kind, op: Op, tensors: Mapping[str, Tensor], visit: Callable[[str], Form]) -> Form:
        rank, axes = tensors[op.inputs[0]].rank, tensors[op.inputs[1]].data if op.has(1) else None
        if rank is None or axes is None or not axes.size:
            return self.atom("tensor", op.name)
        along = tuple(sorted(int(axis) % rank for axis in axes.reshape(-1)))
        if kind.name == "ReduceL2":
            return self._power(self.atom("ReduceSum", along, int(op["keepdims"]), self._power(visit(op.inputs[0]), 2.0)), 0.5)
        return self.atom(kind.name, along, int(op["keepdims"]), visit(op.inputs[0]))

    def _power(self, form: Form, power: float) -> Form:
        """Return a power of a form: of one term a term, of others an atom as the base, so that 1 / sqrt(p) and rsqrt(p) are alike."""
        if len(form) == 1 and (power == int(power) or () in form):
            ((monomial, number),) = form.items()
            if number < 0 and power != int(power):
                raise TooLargeError
            return {tuple((atom, exponent * power) for atom, exponent in monomial): number**power}
        if power == 2.0:
            return _product(form, form)
        if not form:
            raise TooLargeError
        lead = abs(form[min(form, key=len)])
        (((base, _),),) = self.atom("base", _scale(form, 1 / lead))
        return {((base, power),): lead**power}

    def _clip(self, form: Form, low: float, high: float) -> Form:
        """clip(a * p + c, low, high) as c + a * clip(p, ...), so that hard sigmoids are alike in whatever units they clip."""
        inner = self._match_clip(form)
        if inner is not None:
            return self._clip(inner[0], max(low, inner[1]), min(high, inner[2]))
        offset = form.get((), 0.0)
        rest = {key: value for key, value in form.items() if key}
        factor = rest[min(rest)] if rest else 1.0
        low, high = sorted(((low - offset) / factor, (high - offset) / factor))
        return _sum(_scale(self.atom("clip", _scale(rest, 1 / factor), float(low), float(high)), factor), {(): offset})

    def _match_clip(self, form: Form) -> tuple[Form, float, float] | None:
        """Return what a clipped value clips, and its limits, where the form is one times a positive factor, plus a number."""
        rest = [key for key in form if key]
        if len(rest) != 1 or len(rest[0]) != 1 or rest[0][0][1] != 1.0 or form[rest[0]] <= 0:
            return None
        atom = self.atoms[rest[0][0][0]]
        if atom[0] != "clip":
            return None
        factor, offset = form[rest[0]], form.get((), 0.0)
        return _sum(_scale(atom[1], factor), {(): offset}), atom[2] * factor + offset, atom[3] * factor + offset


def words_of(op: Op) -> set[str]:
    """Return the functions that the normal form of an operator may have: itself, and a limit of values, which has a form of its own."""
    kind = kind_of(op)
    is_limit = kind.clips or kind.picks or kind.name == "HardSigmoid" or op.attributes.get("activation")
    return {kind.name, "clip"} if is_limit else {kind.name}


def _numbers(kind: Kind, op: Op, visit: Callable[[str], Form]) -> tuple[float, float] | None:
    """Return the limits of an operator that clips; None if it does not, or if they are not single numbers."""

    def number(name: str) -> Array | None:
        form = visit(name)
        return np.array(form.get((), 0.0)) if set(form) <= {()} else None

    if kind.clips:
        limits = kind.limits(op, number)
        return None if limits is None else interval_of(limits)
    bound = number(op.inputs[1]) if kind.picks and len(op.inputs) == 2 else None
    if bound is None:
        return None
    return (float(bound), math.inf) if kind.picks > 0 else (-math.inf, float(bound))


def _sum(a: Form, b: Form, sign: float = 1.0) -> Form:
    found = {key: a.get(key, 0.0) + sign * b.get(key, 0.0) for key in {**a, **b}}
    most = max(map(abs, (*a.values(), *b.values())), default=0.0)
    return {key: value for key, value in found.items() if abs(value) > 1e-9 * most}


def _scale(form: Form, factor: float) -> Form:
    return {key: value * factor for key, value in form.items()}


def _product(a: Form, b: Form) -> Form:
    if len(a) * len(b) > _MOST_TERMS:
        raise TooLargeError
    found: Form = {}
    for (first, x), (second, y) in itertools.product(a.items(), b.items()):
        powers = dict(first)
        for atom, power in second:
            powers[atom] = powers.get(atom, 0.0) + power
        key = tuple(sorted((atom, power) for atom, power in powers.items() if power))
        found[key] = found.get(key, 0.0) + x * y
    return found
