"""The pass expand_definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qconvert.errors import InvalidGraphError, InvalidModelError, QConvertError
from qconvert.formats.onnx.definitions import arithmetic, attention, embedding, sampling, shaping
from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definitions, NoDefinitionError
from qconvert.formats.onnx.initializers import inline
from qconvert.formats.onnx.model import carried_node, value_info
from qconvert.formats.onnx.proto import GraphProto, ModelProto, make_opset
from qconvert.formats.onnx.signatures import CONTRIB
from qconvert.graph import Graph, Op, Tensor, equal_data
from qconvert.graph.names import Names
from qconvert.operators.shapes_and_functions import rename_functions
from qconvert.operators.sizes import is_compatible
from qconvert.plugins import Target, pass_named
from qconvert.rules.validation import validate

#: Operator, with the domain if it is not ONNX's own -> its definition.
DEFINITIONS: Definitions = {
    **arithmetic.DEFINITIONS,
    **shaping.DEFINITIONS,
    **sampling.DEFINITIONS,
    **attention.DEFINITIONS,
    **embedding.DEFINITIONS,
}
#: The opset of the definitions here.
_OPSET = 24
#: A definition may use operators that have one themselves, up to this depth, and has at most so many nodes.
_DEPTH, _NODES = 6, 2000


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Puts definitions in the place of Opaque operators of ONNX: those of onnx's schemas, and those of the tables here.

    A definition computes float values; what quantization stands around it is absorbed again. A target of ONNX of whose kernels nothing is
    known takes the operators of the standard as they are.
    """
    notes: list[str] = []
    found = graph
    in_standard = target is not None and target.format == "onnx" and not target.knows_kernels
    for _ in range(_DEPTH):
        changed = _expand_operators(found, notes, in_standard)
        if changed is found:
            break
        found = changed
    if found is graph:
        return graph, ()
    absorbed, _ = pass_named("absorb_quantization").run(found, target)
    return absorbed, tuple(notes)


def infer_outputs(inputs: Mapping[str, Tensor], op: Op) -> list[Tensor]:
    """What the outputs of an operator that onnx's shape inference does not know are by its definition; none if it has none."""
    if f"{op['domain']}.{op['op_type']}" not in DEFINITIONS:
        return []
    tensors = {**inputs, **{name: Tensor(name, "unknown", None) for name in op.outputs if name}}
    found = _definition(Graph(name="", tensors=tensors, ops=(), inputs=(), outputs=()), op)
    return [] if found is None else [found[name] for name in op.outputs if name]


def _expand_operators(graph: Graph, notes: list[str], in_standard: bool) -> Graph:
    ops: list[Op] = []
    tensors: dict[str, Tensor] = {}
    functions = dict(graph.functions)
    names, called = graph.names(tensors), Names(functions)
    read = {name for op in graph.ops for name in op.inputs}
    for op in graph.ops:
        inner = _definition(graph, op) if op.kind == "Opaque" and (op["domain"] or not in_standard) else None
        if inner is None:
            ops.append(op)
            continue
        _require_agreement(graph, inner, op)
        notes.append(f"{op['op_type']} {op.outputs[0]!r} became its definition of {len(inner.ops)} operators")
        entered = {name: called.fresh(f"{op.outputs[0]}/{name}") for name in inner.functions}
        functions |= {entered[name]: _rename_functions(part, entered) for name, part in inner.functions.items()}
        renamed: dict[str, str] = {}
        taken: list[Op] = []
        given: list[Op] = []
        for name, tensor in inner.tensors.items():
            is_output = name in op.outputs
            if is_output and not graph[name].is_quantized and name not in read:
                tensors[name] = replace(_merge_types(graph[name], tensor), quantization=tensor.quantization)
                continue
            if (is_output or name in op.inputs) and _is_same(graph[name], tensor):
                tensors.setdefault(name, _merge_types(graph[name], tensor))
                continue
            own = renamed[name] = names.fresh(name)
            tensors[own] = replace(tensor, name=own)
            if is_output:
                given.append(op.derive("Reinterpret", (own,), (name,)))
            elif name in op.inputs and tensor.data is None:
                taken.append(op.derive("Reinterpret", (name,), (own,)))
        ops += taken
        for item in _rename_functions(inner, entered).ops:
            ops.append(replace(item.with_names(renamed), source=op.source))
        ops += given
    return graph if len(notes) == 0 or not tensors else graph.evolve(tensors=tensors.values(), ops=ops, functions=functions)


def _rename_functions(part: Graph, names: Mapping[str, str]) -> Graph:
    """A graph whose operators name their functions by other names."""
    if not names:
        return part
    return part.evolve(ops=[rename_functions(op, names) for op in part.ops])


def _require_agreement(graph: Graph, inner: Graph, op: Op) -> None:
    """Raises InvalidModelError where the file states types or shapes of an operator's tensors that its definition contradicts."""
    where = f"{op.source} {op.outputs[0]!r}"
    try:
        validate(inner)
    except InvalidGraphError as error:
        raise InvalidModelError(
            f"contradicts the definition of {op['op_type']}: {error}", where=where, rule="contradicts-definition"
        ) from error
    for name in filter(None, op.outputs):
        stated, found = graph[name].shape, inner[name].shape
        if not is_compatible(stated, found):
            raise InvalidModelError(
                f"gives {name!r} the shape {found} by its definition, but the file states {stated}", where=where, rule="shape-mismatch"
            )


def _is_same(known: Tensor, found: Tensor) -> bool:
    """Whether a tensor at the edge of a definition is the graph's own: of the same label, and if it is a constant, of the same data."""
    if known.quantization != found.quantization:
        return False
    return found.data is None or known.data is found.data or equal_data(known.data, found.data)


def _merge_types(known: Tensor, found: Tensor) -> Tensor:
    """A tensor at the edge of a definition: its type and its shape are the more telling ones."""
    dtype = found.dtype if known.dtype == "unknown" else known.dtype
    return replace(known, dtype=dtype, shape=found.shape if known.shape is None else known.shape)


def _definition(graph: Graph, op: Op) -> Graph | None:
    """What computes the outputs of an Opaque operator from its inputs; None if nothing defines it."""
    known = op["format"] == "onnx" and not op["captures"] and all(graph[name].dtype != "unknown" for name in op.inputs if name)
    node = carried_node(op) if known else None
    if node is None:
        return None
    key = f"{op['domain']}.{op['op_type']}" if op["domain"] else str(op["op_type"])
    try:
        define = DEFINITIONS.get(key)
        if define is not None:
            decomposition = Decomposition(graph, op, node)
            define(decomposition)
            return _read(_model(graph, op, decomposition.nodes, _OPSET, decomposition.constants))
    except (NoDefinitionError, QConvertError, ArithmeticError, LookupError, TypeError, ValueError):
        pass  # a file may give a node of no schema attributes and sizes that mean nothing
    return _schema_definition(graph, op, node)


def _schema_definition(graph: Graph, op: Op, node: Any) -> Graph | None:
    """The definition that onnx's schema of an operator gives."""
    from onnx import defs, inliner

    domain, op_type, version = str(op["domain"]), str(op["op_type"]), int(op["version"])
    if domain or not defs.has(op_type, version, domain):
        return None
    schema: Any = defs.get_schema(op_type, version, domain)  # the stubs lack some of its properties
    if not (schema.has_function or schema.has_context_dependent_function):
        return None
    stated = {item.name for item in node.attribute}
    node.attribute.extend(item.default_value for name, item in schema.attributes.items() if name not in stated and item.default_value.type)
    node.input.extend(op.inputs)
    node.output.extend(op.outputs)
    try:
        model = inliner.inline_selected_functions(
            _model(graph, op, [node], version, {}), [("", op_type)], exclude=False, inline_schema_functions=True
        )
        if any(item.op_type == op_type and not item.domain for item in model.graph.node) or len(model.graph.node) > _NODES:
            return None
        return _read(model)
    except QConvertError:
        return None
    except Exception:  # the inliner's errors share no class but Exception
        return None


def _model(graph: Graph, op: Op, nodes: list[Any], opset: int, constants: Mapping[str, Any]) -> Any:
    """A ModelProto of nodes that take the operator's inputs and give its outputs."""
    inputs = [graph[name] for name in dict.fromkeys(op.inputs) if name]
    held = {tensor.name: tensor.data for tensor in inputs if tensor.data is not None}
    made = GraphProto(
        node=nodes,
        name="definition",
        input=[value_info(tensor) for tensor in inputs if tensor.data is None],
        output=[value_info(graph[name]) for name in op.outputs if name],
        initializer=inline({**held, **constants}),
        value_info=[value_info(tensor) for tensor in inputs if tensor.data is not None],  # the inliner looks for types there
    )
    return ModelProto(ir_version=10, opset_import=[make_opset("", opset), make_opset(CONTRIB, 1)], graph=made)


def _read(model: Any) -> Graph:
    from qconvert.formats.onnx.container import parse_model
    from qconvert.formats.onnx.reader import read_model

    return read_model(parse_model(model.SerializeToString()), "definition", again=True)
