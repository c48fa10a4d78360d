"""fuse_dilation: SpaceToBatch, a convolution with stride 1 and BatchToSpace become one dilated convolution.

    x -> SpaceToBatch(d; p) -> Conv(dilation e, pads q) -> BatchToSpace(d; c)      is
    x -> Conv(dilation d * e, pads p + d * q - c)

Exact: each sum has the same terms, as both pad with real zero. TensorFlow's converter writes dilated convolutions so, behind a new axis
in front of Conv1D. What is computed at run time may be fused too, as long as p - c is one number: the part of the padding that fills the
last block is cropped again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qconvert.evaluate.known_sizes import KnownSizes
from qconvert.evaluate.polynomials import added, number
from qconvert.graph import Graph, Names, Op, Tensor
from qconvert.passes import remove_dead_code
from qconvert.plugins import Target

__all__ = ["run"]


@dataclass(frozen=True, slots=True)
class _Found:
    """The operators of a pattern in order; `before` and `behind` are absent where no axis is added."""

    split: Op
    before: Op | None
    conv: Op
    behind: Op | None
    joined: Op

    @property
    def inner(self) -> Iterator[Op]:
        """All but the last one, whose place the others take."""
        return (op for op in (self.split, self.before, self.conv, self.behind) if op is not None)


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Fuses every such three operators between which nothing else reads."""
    if not any(op.kind == "BatchToSpace" for op in graph.ops):
        return graph, ()
    producers, readers = graph.producers(), graph.consumers()
    sizes = KnownSizes(graph.tensors, producers)
    made: dict[int, list[Op]] = {}  # id of the last operator of a pattern -> what takes its place
    gone: set[int] = set()
    tensors: dict[str, Tensor] = {}
    names = graph.names(tensors)
    for op in graph.ops:
        found = _pattern(graph, op, producers, readers)
        attributes = None if found is None else _dilated(graph, sizes, found)
        if found is None or attributes is None:
            continue
        made[id(op)], new = _fused(graph, found, attributes, names)
        gone.update(id(inner) for inner in found.inner)
        tensors.update({tensor.name: tensor for tensor in new})
    if not made:
        return graph, ()
    ops = [new for op in graph.ops if id(op) not in gone for new in made.get(id(op), [op])]
    changed, _ = remove_dead_code.run(graph.evolve(tensors=tensors.values(), ops=ops), target)
    return changed, (f"{len(made)} convolutions between SpaceToBatch and BatchToSpace are dilated ones",)


def _pattern(graph: Graph, joined: Op, producers: dict[str, Op], readers: dict[str, list[Op]]) -> _Found | None:
    """The pattern that ends with `joined`, if nothing but its own operators reads between them."""
    if joined.kind != "BatchToSpace":
        return None

    def maker(op: Op, *kinds: str) -> Op | None:
        name = op.inputs[0]
        found = producers.get(name)
        is_inner = found is not None and found.kind in kinds and len(readers[name]) == 1 and name not in graph.public
        return found if is_inner else None

    last = maker(joined, "Squeeze", "Conv")
    behind = last if last is not None and last.kind == "Squeeze" else None
    conv = maker(behind, "Conv") if behind is not None else last
    first = None if conv is None else maker(conv, "Unsqueeze" if behind is not None else "SpaceToBatch")
    before = first if behind is not None else None
    split = maker(before, "SpaceToBatch") if before is not None else first
    if conv is None or split is None or (before is not None and behind is not None and _axis(graph, before) != _axis(graph, behind)):
        return None
    if behind is not None and _axis(graph, behind) is None:
        return None
    return _Found(split, before, conv, behind, joined)


def _axis(graph: Graph, op: Op) -> int | None:
    """The one axis that an Unsqueeze adds or a Squeeze takes away, in the wide tensor; None if it is not one."""
    axes = graph.constant(op.inputs[1])
    rank = graph[op.outputs[0] if op.kind == "Unsqueeze" else op.inputs[0]].rank
    return None if axes is None or axes.size != 1 or not rank else int(axes.reshape(-1)[0]) % rank


def _dilated(graph: Graph, sizes: KnownSizes, found: _Found) -> dict[str, tuple[int, ...]] | None:
    """The dilations and pads of the one convolution; None if it is not one."""
    conv, split, joined = found.conv, found.split, found.joined
    blocks, same = (sizes.get(op.inputs[1]) for op in (split, joined))
    pads, crops = (sizes.get(op.inputs[2]) for op in (split, joined))
    count = len(conv["strides"])
    is_plain = set(conv["strides"]) == {1} and conv["auto_pad"] == "NOTSET"
    if not is_plain or blocks is None or blocks != same or pads is None or crops is None or not len(pads) == len(crops) == 2 * len(blocks):
        return None
    data = graph[split.inputs[0]]
    first = 1 if split["data_format"] == "channels_last" or data.rank != 4 else 2
    new = None if found.before is None else _axis(graph, found.before)
    front = 1 if conv["data_format"] == "channels_last" else 2
    dilations, edges = list(conv["dilations"]), list(conv["pads"])
    for i, block in enumerate(blocks):
        axis = first + i
        place = axis + int(new is not None and axis >= new) - front
        factor = number(block)
        if factor is None or not 0 <= place < count:
            return None
        dilations[place] *= factor
        for side in (0, 1):
            difference = added(pads[side * len(blocks) + i], crops[side * len(blocks) + i], -1)
            extra = None if difference is None else number(difference)
            if extra is None:
                return None
            edges[side * count + place] = edges[side * count + place] * factor + extra
    if min(edges) < 0 or split["data_format"] != joined["data_format"]:
        return None
    return {"dilations": tuple(dilations), "pads": tuple(edges)}


def _fused(graph: Graph, found: _Found, attributes: dict[str, tuple[int, ...]], names: Names) -> tuple[list[Op], list[Tensor]]:
    """The operators that take the place of the pattern, and the tensors between them: under new names, as they are not in blocks."""
    data, result = found.split.inputs[0], found.joined.outputs[0]
    conv = found.conv.with_attributes(**attributes)
    if found.before is None or found.behind is None:
        return [replace(conv, inputs=(data, *conv.inputs[1:]), outputs=(result,))], []
    axis = _axis(graph, found.before)
    tensors = []
    for name, other in ((found.before.outputs[0], data), (found.conv.outputs[0], result)):
        shape = graph[other].shape
        whole = None if shape is None or axis is None else (*shape[:axis], 1, *shape[axis:])
        tensors.append(replace(graph[name], name=names.fresh(f"{other}/wide"), shape=whole))
    before = replace(found.before, inputs=(data, *found.before.inputs[1:]), outputs=(tensors[0].name,))
    conv = replace(conv, inputs=(tensors[0].name, *conv.inputs[1:]), outputs=(tensors[1].name,))
    return [before, conv, replace(found.behind, inputs=(tensors[1].name, *found.behind.inputs[1:]), outputs=(result,))], tensors
