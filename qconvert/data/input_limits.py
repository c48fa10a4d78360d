"""What the inputs of a graph may be: sizes that are known only when the model runs, as a user states them or as they are to be tried; and
bounds on values that its operators take, such as the indices of a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from qconvert.errors import OptionError
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.properties import ANY, ELEMENTWISE, Demand, Domain, Interval, Number, Operands
from qconvert.operators.sizes import axes_of_space

Shape = tuple[int | str, ...]

#: Tried one after the other where the graph demands nothing.
_SIZES = (1, 2, 16, 64, 224)
#: And where all inputs are vectors, or rows of them, such as sound: windows of a few hundred samples have to fit several times.
_SIZE_OF_SOUND = 4096
#: What windows with strides leave of an image or a sound most often: 224 / 32, as in networks of ImageNet; and the largest size of that.
_LEFT, _LARGEST = 7, 1024

#: Tried besides the accepted ones: 1, 2, and a larger one that is no power of two.
_OTHERS = (1, 2, 7)
#: Sizes above this are not small ones that happened to be tried first: windows have to fit.
_SMALL = 16
#: How many demanded sizes of one name are tried.
_MOST = 4


def sizes_to_try(graph: Graph) -> list[dict[str, int]]:
    """Numbers for the names of sizes, the most likely first: what the graph's constants and inner sizes demand, what its strides suggest, 1
    elsewhere, then growing; without names {}.

    A name is the same number in all inputs. The first size of an input, most often a batch, is 2 at most.
    """
    shapes = [graph[name].shape or () for name in graph.inputs]
    names, batches = _names(shapes)
    if not names:
        return [{}]
    sound = all(len(shape) <= 2 for shape in shapes)
    demanded: dict[str, list[int]] = {name: [] for name in names}
    for op in graph.ops:
        for name, size in _demands(graph, op, batches):
            if name in demanded and size > 0 and size not in demanded[name]:
                demanded[name].append(size)
    suggested = _LEFT * _stride(graph)
    inner = {str(size) for shape in shapes if len(shape) > 2 for size in shape[1:]} if _LEFT < suggested <= _LARGEST else set()
    for name in inner.intersection(names).difference(map(str, batches)):
        demanded[name] = demanded[name] or [suggested]
    free = [{name: min(base, 2) if name in batches else base for name in names} for base in (*_SIZES, *[_SIZE_OF_SOUND] * sound)]
    found = [
        {name: sizes[min(choice, len(sizes) - 1)] if (sizes := demanded[name]) else others[name] for name in names}
        for choice in range(max(1, min(_MOST, max(map(len, demanded.values())))))
        for others in free
    ]
    return [dict(items) for items in dict.fromkeys(tuple(sizes.items()) for sizes in (*found, *free))]


def _stride(graph: Graph) -> int:
    """By how much windows, one after the other, make sizes smaller."""
    found: dict[str, int] = {}
    for op in graph.ops:
        own = max((found.get(name, 1) for name in op.inputs), default=1)
        if kind_of(op).has_windows:
            own *= max(map(int, op["strides"]), default=1)
        found.update(dict.fromkeys(op.outputs, own))
    return max(found.values(), default=1)


def other_sizes(graph: Graph, accepted: Mapping[str, tuple[int, ...]]) -> list[dict[str, int]]:
    """Further numbers for the names of sizes: 1, 2 and a larger one for what is most often a batch, and for the others where small ones are
    accepted too.

    Args:
        graph: the graph.
        accepted: the shape of each input of which the graph is known to run.
    """
    shapes = [graph[name].shape or () for name in graph.inputs]
    names, batches = _names(shapes)
    pairs = zip((size for shape in shapes for size in shape), (size for name in graph.inputs for size in accepted[name]), strict=False)
    own = {name: number for name, number in pairs if isinstance(name, str) and name in names}
    small = {name for name, number in own.items() if number <= _SMALL}
    found = [{**own, **dict.fromkeys(own.keys() & chosen, number)} for chosen in (batches | small, batches) for number in _OTHERS]
    return [dict(items) for items in dict.fromkeys(tuple(sizes.items()) for sizes in found) if dict(items) != own]


def _names(shapes: Sequence[Shape]) -> tuple[list[str], set[str]]:
    """The plain names of sizes, and those of them that are the first sizes of inputs alone, most often a batch."""
    names = list(dict.fromkeys(size for shape in shapes for size in shape if isinstance(size, str) and _parts(size) is None))
    batches = {str(shape[0]) for shape in shapes if shape and isinstance(shape[0], str)} - {size for shape in shapes for size in shape[1:]}
    return names, batches


def number_of(sizes: Mapping[str, int]) -> Callable[[int | str], int]:
    """The number that a size has with `sizes`; that of a name like "past + sequence" is worked out, another name's is 1."""

    def number(size: int | str) -> int:
        if not isinstance(size, str):
            return size
        parts = None if size in sizes else _parts(size)
        return max(0, sum(sign * math.prod(map(one, factors)) for sign, factors in parts)) if parts else sizes.get(size, 1)

    def one(word: str) -> int:
        return int(word) if word.isdigit() else sizes.get(word, 1)

    return number


def _parts(name: str) -> list[tuple[int, list[str]]] | None:
    """The signed products of a name that is a formula; None if it is a plain name."""
    if not re.fullmatch(r"\s*\w+(\s*[-+*]\s*\w+)+\s*", name):
        return None
    terms = re.findall(r"([-+]?)\s*(\w+(?:\s*\*\s*\w+)*)", name)
    return [(-1 if sign == "-" else 1, [word.strip() for word in term.split("*")]) for sign, term in terms]


def _demands(graph: Graph, op: Op, batches: set[str]) -> Iterator[tuple[str, int]]:
    """Names of sizes, and the number that the operator demands of each."""
    kind, operands = kind_of(op), Operands(op, tuple(graph[name] if name else None for name in op.inputs))
    data, sizes = operands.shape(0), operands.constant(1)
    if op.kind == "Reshape" and data is not None and sizes is not None:
        yield from _reshape_demand(data, [int(size) for size in sizes.reshape(-1)], batches)
    if kind.has_windows and data and (result := graph[op.outputs[0]].shape):
        for axis, step in zip(axes_of_space(op, result), op["strides"], strict=False):
            if isinstance(result[axis], int):
                yield from _equality_demand(data[axis], int(result[axis]) * int(step))
    if kind.matching_sizes is not None:
        yield from (demand for pair in kind.matching_sizes(operands) for demand in _equality_demand(*pair))
    elif kind.layout == ELEMENTWISE:
        yield from _broadcast_demand([tensor for tensor in operands.tensors if tensor is not None])


def _equality_demand(a: int | str, b: int | str) -> Iterator[tuple[str, int]]:
    if isinstance(a, str) and isinstance(b, int):
        yield a, b
    elif isinstance(b, str) and isinstance(a, int):
        yield b, a


def _broadcast_demand(tensors: list[Tensor]) -> Iterator[tuple[str, int]]:
    """A size next to a number above 1 is that number, most often."""
    for first in tensors:
        for second in tensors:
            for a, b in zip(reversed(first.shape or ()), reversed(second.shape or ()), strict=False):
                if isinstance(b, int) and b > 1:
                    yield from _equality_demand(a, b)


def _reshape_demand(shape: Shape, sizes: list[int], batches: set[str]) -> Iterator[tuple[str, int]]:
    """The one name besides a batch, so that the elements fit the sizes; the batch alone, if there is no other."""
    names = [size for size in shape if isinstance(size, str) and size not in batches] or [size for size in shape if isinstance(size, str)]
    if len(set(names)) != 1 or len(names) != 1 or 0 in sizes:
        return
    known, fixed = math.prod(size for size in shape if isinstance(size, int)), math.prod(size for size in sizes if size > 0)
    if known <= 0 or fixed <= 0:
        return
    if -1 in sizes:
        yield names[0], fixed // math.gcd(known, fixed)
    elif fixed % known == 0:
        yield names[0], fixed // known


#: The smallest, the optimal and the largest sizes of an input.
Bounds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_FORM = "Write NAME:1x3x224x224, or three of them: NAME:1x3x64x64,1x3x224x224,1x3x512x512 (min, opt, max)."


def stated_bounds(texts: Sequence[str]) -> Mapping[str, Bounds]:
    """Input -> its sizes, of texts such as "x:1x3x224x224", or "x:" with the smallest, the optimal and the largest; raises OptionError.

    A name may have colons in it: the sizes stand after the last.
    """
    found: dict[str, Bounds] = {}
    for text in texts:
        name, colon, said = text.rpartition(":")
        shapes = said.split(",")
        if not (name and colon) or len(shapes) not in (1, 3) or not all(re.fullmatch(r"\d{1,9}(x\d{1,9})*", item) for item in shapes):
            raise OptionError(f"--shape {text!r} has no sizes of an input", remedy=_FORM, rule="malformed-shape")
        least, optimal, most = (tuple(map(int, item.split("x"))) for item in (shapes if len(shapes) == 3 else shapes * 3))
        if not len(least) == len(optimal) == len(most) or any(not a <= b <= c for a, b, c in zip(least, optimal, most, strict=True)):
            raise OptionError(
                f"--shape {text!r} has sizes that decrease; min, opt and max must not decrease", remedy=_FORM, rule="sizes-not-increasing"
            )
        found[name] = (least, optimal, most)
    return found


#: An input of an operator, and what that takes.
_Demand = tuple[str, float, float]


def input_bounds(graph: Graph, number: Number) -> dict[str, Interval]:
    """Bounds on the values of inputs, by name; those that are free are absent. Two demands that exclude each other leave the lower one.

    Args:
        graph: the graph; its functions say nothing.
        number: of a size.
    """
    found: dict[str, Interval] = {}
    for op in reversed(graph.ops):
        for name, low, high in (*_own_demands(graph, op, number), *_propagate_demands(graph, op, found)):
            if name and not graph[name].is_constant:
                old = found.get(name, ANY)
                both = max(low, old[0]), min(high, old[1])
                found[name] = both if both[0] <= both[1] else (both[1], both[1])
    return {name: found[name] for name in graph.inputs if name in found}


def _own_demands(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    """What the operator itself demands."""
    kind = kind_of(op)
    domain = _OPAQUE.get(str(op["op_type"])) if kind.rule == "opaque" else kind.domain
    if domain is not None:
        operands = Operands(op, tuple(graph[name] if name else None for name in op.inputs))
        yield from ((op.inputs[index], low, high) for index, low, high in domain(operands, number))


def _embedding_domain(operands: Operands, number: Number) -> Iterator[Demand]:
    """EmbedLayerNormalization of com.microsoft: (word ids, segment ids, table of words, of positions, of segments, …)."""
    for index, table in ((0, 2), (1, 4)):
        if operands.tensor(table) is not None and operands.tensor(index) is not None:
            yield index, 0, operands.size(table, 0, number) - 1


def _block_domain(operands: Operands, number: Number) -> Iterator[Demand]:
    """GatherBlockQuantized of com.microsoft, whose table may be gathered along any axis."""
    table = operands.tensor(0)
    rank = 0 if table is None else table.rank or 0
    yield 1, 0, min((operands.size(0, axis, number) for axis in range(rank)), default=1) - 1


#: Operators outside the canonical set.
_OPAQUE: Mapping[str, Domain] = {
    "EmbedLayerNormalization": _embedding_domain,
    "QEmbedLayerNormalization": _embedding_domain,
    "GatherBlockQuantized": _block_domain,
}


def _propagate_demands(graph: Graph, op: Op, found: dict[str, Interval]) -> Iterator[_Demand]:
    """What demands on the results mean for the inputs."""
    wanted = [found[name] for name in op.outputs if name in found]
    if not wanted:
        return
    low, high = max(bounds[0] for bounds in wanted), min(bounds[1] for bounds in wanted)
    kind = kind_of(op)
    ranges = {name: _constant_range(graph, name) for name in op.inputs if name}
    if kind.rule in ("move", "convert") or kind.clips or kind.nearby or kind.chooses:
        # A limit that the operator sets itself frees its data on that side.
        ends = kind.interval(graph, op, ranges)
        low, high = (-math.inf if low <= ends[0] else low), (math.inf if high >= ends[1] else high)
        yield from ((name, low, high) for name in kind.data(op))
    elif kind.preimage is not None:
        demands = kind.preimage(kind.operands(graph, op, ranges), (low, high))
        yield from ((op.inputs[index], least, most) for index, least, most in demands)


def _constant_range(graph: Graph, name: str) -> Interval:
    """The smallest and the largest value of a plain constant; ANY for other tensors."""
    data = graph.constant(name)
    if data is None or not data.size or graph[name].is_quantized:
        return ANY
    return float(data.min()), float(data.max())
