"""Parts that a network may be cut into: the graph for cutting, in which every Dequantize has one reader, so that it stands in the part of
its reader (onnxruntime does likewise with its NodeUnits, core/framework/node_unit.h: integers go from one part to another, not four
times as many bytes of floats); and whether a target takes parts, fitted by its own passes as in a conversion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from qconvert.conversion.judging import refuse_losses
from qconvert.conversion.normalizing import normalize
from qconvert.errors import InternalError, QConvertError
from qconvert.graph import Graph, Names, Op, count_kinds
from qconvert.graph.metadata import ACTIVATIONS, SOURCE_ENGINE, SOURCE_FORMAT, SOURCE_KERNELS, SOURCE_OPSET
from qconvert.operators import KINDS, kind_of
from qconvert.operators.shapes_and_functions import all_ops, named_states, with_used_functions
from qconvert.plugins import Codegen, Target, Violation, codegen_of, formats, operators
from qconvert.rewriting.lowering import legality, lower
from qconvert.targets.audit import violations

#: Keys of metadata that passes read.
_KEPT = (SOURCE_FORMAT, SOURCE_KERNELS, SOURCE_ENGINE, SOURCE_OPSET, ACTIVATIONS)


@dataclass(frozen=True, slots=True)
class Expanded:
    """A graph for cutting. Operators are known by their places in `graph.ops`.

    Attributes:
        graph: with a copy of each Dequantize for each further operator that reads it.
        original: the result of a copy -> that of the operator that it is a copy of.
        before: for each operator, those that have to come before it: it reads what they compute, or the state that they write.
        data: the same without those that only have to come first, as what reads a state has to before it is written.
        readers: tensor -> the operators that read it.
    """

    graph: Graph
    original: Mapping[str, str]
    before: tuple[frozenset[int], ...]
    data: tuple[frozenset[int], ...]
    readers: Mapping[str, tuple[int, ...]]

    def piece(self, places: Iterable[int], name: str = "piece") -> Graph:
        """Return some of the operators as a graph of their own, with the functions that they run and the states that they name.

        Its inputs are the tensors of other operators that they read, in order; its outputs are read by other operators or are public.
        """
        chosen = frozenset(places)
        graph, ops = self.graph, [self.graph.ops[place] for place in sorted(chosen)]
        made = {result for op in ops for result in op.outputs if result}
        read = dict.fromkeys(x for op in ops for x in op.inputs if x and x not in made and not graph[x].is_constant)
        given = [x for op in ops for x in op.outputs if x and (x in graph.public or not chosen.issuperset(self.readers.get(x, ())))]
        states = {state: graph.states[state] for state in named_states(graph, ops)}
        named = dict.fromkeys(x for op in ops for x in op.names if x)
        tensors = {x: graph[x] for x in named}  # not by evolve(), which looks at all tensors of the whole
        piece = Graph(name, tensors, tuple(ops), tuple(read), tuple(given), metadata=kept_metadata(graph), states=states)
        return with_used_functions(replace(piece, functions=graph.functions))

    def merge_copies(self, graph: Graph) -> Graph:
        """Return a part with the original names of copies; what was copied occurs once."""
        names, seen, ops = self.original, set[str](), []
        for op in graph.ops:
            renamed = op.with_names(names)
            if seen.isdisjoint(filter(None, renamed.outputs)):
                ops.append(renamed)
            seen.update(renamed.outputs)
        tensors = [replace(graph[copy], name=name) for copy, name in names.items() if copy in graph.tensors]
        return graph.evolve(tensors=tensors, ops=ops, outputs=tuple(dict.fromkeys(names.get(name, name) for name in graph.outputs)))


def kept_metadata(graph: Graph) -> dict[str, str]:
    """Return the metadata that a part has of its graph."""
    return {key: graph.metadata[key] for key in _KEPT if key in graph.metadata}


def expand_graph(graph: Graph) -> Expanded:
    """Return the graph for cutting; dead operators have to be removed before (pass remove_dead_code)."""
    readers = _readers(graph.ops)
    tensors = dict(graph.tensors)
    names = Names(tensors)
    original: dict[str, str] = {}
    copies: dict[int, list[Op]] = {}
    given: dict[int, dict[str, str]] = {}
    for position, op in enumerate(graph.ops):
        if not kind_of(op).dequantizes:
            continue
        result = op.name
        for reader in readers.get(result, ())[0 if result in graph.public else 1 :]:
            copy = names.fresh(result)
            tensors[copy] = replace(graph[result], name=copy)
            original[copy] = result
            copies.setdefault(position, []).append(replace(op, outputs=(copy,)))
            given.setdefault(reader, {})[result] = copy
    ops: list[Op] = []
    for position, op in enumerate(graph.ops):
        ops.append(op.with_names(given[position]) if position in given else op)
        ops += copies.get(position, ())
    made = graph.evolve(tensors=tensors.values(), ops=ops)
    places = {name: place for place, op in enumerate(made.ops) for name in op.outputs if name}
    data = tuple(frozenset(places[name] for name in op.inputs if name in places) for op in made.ops)
    states = tuple(_states_before(made))
    through = (_find_state_writers(made, op, found) for op, found in zip(made.ops, states, strict=True))
    before = tuple(map(frozenset.union, data, states))
    return Expanded(made, original, before, tuple(map(frozenset.union, data, through)), _readers(made.ops))


def _readers(ops: Iterable[Op]) -> dict[str, tuple[int, ...]]:
    """Return tensor -> the places of the operators that read it."""
    found: dict[str, dict[int, None]] = {}
    for position, op in enumerate(ops):
        for name in filter(None, op.inputs):
            found.setdefault(name, {})[position] = None
    return {name: tuple(places) for name, places in found.items()}


def _states_before(graph: Graph) -> Iterator[frozenset[int]]:
    """Yield for each operator those before it that use the same state, if one of both may write it."""
    reads: dict[str, list[int]] = {}
    writes: dict[str, list[int]] = {}
    for position, op in enumerate(graph.ops):
        states, only_reads = named_states(graph, [op]), kind_of(op).reads_state
        found = [one for state in states for one in (*writes.get(state, ()), *(() if only_reads else reads.get(state, ())))]
        yield frozenset(found)
        for state in states:
            (reads if only_reads else writes).setdefault(state, []).append(position)


def _find_state_writers(graph: Graph, op: Op, before: frozenset[int]) -> frozenset[int]:
    """Return those of the operators before a ReadState that write its state."""
    return frozenset(one for one in before if kind_of(op).reads_state and kind_of(graph.ops[one]).has_effect)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a target does not take a part.

    Attributes:
        rule: in words.
        places: the operators and tensors concerned, as violations name them.
    """

    rule: str
    places: tuple[str, ...] = ()


@dataclass(slots=True)
class Judge:
    """Decides which operators of a graph one target takes.

    Attributes:
        target: the target.
        graph: the graph.
        lossless: whether it refuses operators of which its passes change a value; else convert() sets the limit.
    """

    target: Target
    graph: Expanded
    lossless: bool = False
    _known: dict[frozenset[int], Refusal | None] = field(default_factory=dict)

    @property
    def codegen(self) -> Codegen | None:
        return codegen_of(self.target.name)

    @property
    def holds_states(self) -> bool:
        """Whether files for it can hold states: its format does, or a pass makes them inputs and outputs that its runtime carries."""
        if self.codegen is not None:
            return self.codegen.states
        known = formats().get(self.target.format)
        return self.target.ensures("no states") or (known is not None and "states" in known.scopes)

    def refusal(self, places: Iterable[int]) -> Refusal | None:
        """Return why the target does not take operators as one part; None if it does.

        Args:
            places: of the operators.
        """
        key = frozenset(places)
        if key not in self._known:
            self._known[key] = self._judge(key)
        return self._known[key]

    def _judge(self, places: frozenset[int]) -> Refusal | None:
        piece = self.graph.piece(places)
        try:
            made, changes = normalize(piece, self.target)
            refuse_losses(changes)
        except InternalError:
            raise
        except QConvertError as error:
            return Refusal(" ".join(error.reason.split()), (error.where,))
        made = self._lower_for_format(made)
        costs = [change for change in changes if any(cost.sqnr_db is not None for cost in change.costs)] if self.lossless else ()
        if costs:
            return Refusal(f"{costs[0].by} would change values", tuple(cost.tensor for cost in costs[0].costs))
        found = violations(made, self.target)
        if found:
            return Refusal(_violation_text(found[0], made), tuple(violation.where for violation in found))
        return None if self.codegen is not None else self._writer_refusal(made)

    def _lower_for_format(self, made: Graph) -> Graph:
        """Lower the kinds that the target's format lacks, as its writer does."""
        kinds = _written_kinds(self.target.format)
        return made if not kinds or kinds.issuperset(count_kinds(all_ops(made))) else lower(made, legality({}, also=kinds)).graph

    def _writer_refusal(self, made: Graph) -> Refusal | None:
        """Return the refusal if the target's format cannot hold an operator or functions; else None."""
        known = formats().get(self.target.format)
        if made.functions and known is not None and known.write is not None and "functions" not in known.scopes:
            return Refusal(f"files of the format {known.name} hold no functions")
        kinds = _written_kinds(self.target.format)
        missing = next((kind for kind in count_kinds(all_ops(made)) if kind not in kinds), "") if kinds else ""
        return Refusal(f"files of the format {self.target.format} have no {missing}") if missing else None


def _written_kinds(format: str) -> frozenset[str]:
    """Return the kinds that files of a format hold, none if it has no operators; calls are inlined, and loops written as other loops."""
    writers = operators(format, "write")
    return frozenset((*writers, *(name for name, kind in KINDS.items() if kind.rule == "control"))) if writers else frozenset()


def _violation_text(violation: Violation, graph: Graph) -> str:
    """Return the violated rule, with the detail if it names no tensor."""
    how = next((text for op in graph.ops if (text := violation.where.removeprefix(f"{op.location}: ")) != violation.where), "")
    return violation.rule if not how or "'" in how or '"' in how else f"{violation.rule}: {how}"
