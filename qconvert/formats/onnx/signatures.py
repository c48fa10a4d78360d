"""Signatures of ONNX's operators, of onnxruntime's own and of QONNX's, and what is checked by them: nodes that are read, and types of
nodes that are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.onnx.initializers import DTYPE_NAMES
from qconvert.formats.onnx.model import DEFAULT_DOMAINS, domain_of, subgraphs
from qconvert.formats.onnx.proto import AttributeType, defs, newest_opset
from qconvert.formats.onnx.verify import node_label
from qconvert.operators.kind import Broken

CONTRIB = "com.microsoft"
#: The domain of QONNX that is written, and those of older exporters.
QONNX = "qonnx.custom_op.general"
QONNX_DOMAINS = (QONNX, "finn.custom_op.general", "onnx.brevitas")

_ONE = "x x_scale x_zero_point? y_scale y_zero_point?"
_PAIR = "a a_scale a_zero_point? b b_scale b_zero_point? c_scale c_zero_point?"
_WINDOW = {"auto_pad": "STRING", "kernel_shape": "INTS", "pads": "INTS", "strides": "INTS", "channels_last": "INT"}

#: Operator -> its inputs ("?" after an optional one, "*" after one of which there may be any number) and its attributes with their
#: types ("!" after a required one). Each has one output, but for those in OUTPUTS.
CONTRIB_SIGNATURES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "QuantizeLinear": ("x y_scale y_zero_point?", {"axis": "INT"}),
    "DequantizeLinear": ("x x_scale x_zero_point?", {"axis": "INT"}),
    "DynamicQuantizeMatMul": ("a b b_scale b_zero_point? bias?", {}),
    "DynamicQuantizeLSTM": (
        "x w r b? sequence_lens? initial_h? initial_c? p? w_scale w_zero_point r_scale r_zero_point",
        {
            "activations": "STRINGS",
            "activation_alpha": "FLOATS",
            "activation_beta": "FLOATS",
            "clip": "FLOAT",
            "direction": "STRING",
            "hidden_size": "INT",
            "input_forget": "INT",
        },
    ),
    "Gelu": ("x", {}),
    "FastGelu": ("x bias?", {}),
    "BiasGelu": ("x bias", {}),
    "GatherBlockQuantized": (
        "data indices scales zero_points?",
        {"bits": "INT", "block_size": "INT", "gather_axis": "INT", "quantize_axis": "INT"},
    ),
    "MatMulIntegerToFloat": ("a b a_scale b_scale a_zero_point? b_zero_point? bias?", {}),
    "MatMulNBits": (
        "a b scales zero_points? g_idx? bias?",
        {"K": "INT!", "N": "INT!", "bits": "INT", "block_size": "INT!", "accuracy_level": "INT", "weight_prepacked": "INT"},
    ),
    "QGemm": (
        "a a_scale a_zero_point b b_scale b_zero_point c? y_scale? y_zero_point?",
        {"alpha": "FLOAT", "transA": "INT", "transB": "INT"},
    ),
    "QLinearAdd": (_PAIR, {}),
    "QLinearMul": (_PAIR, {}),
    "QLinearWhere": ("condition x x_scale x_zero_point y y_scale y_zero_point z_scale z_zero_point", {}),
    "QLinearAveragePool": (_ONE, {**_WINDOW, "kernel_shape": "INTS!", "ceil_mode": "INT", "count_include_pad": "INT"}),
    "QLinearGlobalAveragePool": ("x x_scale x_zero_point y_scale y_zero_point", {"channels_last": "INT"}),
    "QLinearReduceMean": (_ONE, {"axes": "INTS!", "keepdims": "INT!"}),
    "QLinearLeakyRelu": (_ONE, {"alpha": "FLOAT"}),
    "QLinearSigmoid": (_ONE, {}),
    "QLinearSoftmax": ("x x_scale x_zero_point? y_scale y_zero_point", {"axis": "INT", "opset": "INT!"}),
    "QLinearConcat": ("y_scale y_zero_point inputs*", {"axis": "INT!"}),
    "QLinearConv": (
        "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point b?",
        {**_WINDOW, "dilations": "INTS", "group": "INT"},
    ),
}

#: The most outputs of those that have others than one.
OUTPUTS: Mapping[str, tuple[int, int]] = {"DynamicQuantizeLSTM": (0, 3)}

_ROUNDED = {"signed": "INT", "narrow": "INT", "rounding_mode": "STRING"}
_QONNX: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Quant": ("x scale zero_point bit_width", _ROUNDED),
    "IntQuant": ("x scale zero_point bit_width", _ROUNDED),
    "BipolarQuant": ("x scale", {}),
    "Trunc": ("x scale zero_point in_bit_width out out_bit_width?", _ROUNDED),
}

SIGNATURES: Mapping[str, Mapping[str, tuple[str, Mapping[str, str]]]] = {
    CONTRIB: CONTRIB_SIGNATURES,
    **dict.fromkeys(QONNX_DOMAINS, _QONNX),
}


_ENDLESS = 2**31 - 1
#: Number -> type of an attribute, apart from the one that says nothing.
_ATTRIBUTE_TYPES = {int(item): item for item in AttributeType if item}
#: Types of ONNX that have another canonical name.
_TYPE_NAMES = {"float": "float32", "double": "float64"}
_VALUES = frozenset(item.field for item in _ATTRIBUTE_TYPES.values())


class Signature(NamedTuple):
    """What a node of an operator has to look like.

    Attributes:
        inputs, outputs: the fewest and the most.
        needed: for each input in turn whether it must be there; inputs after these are like the last one.
        attributes: by name its type in onnx.proto.
        required: the attributes without which the node means nothing.
        is_closed: whether there are no other attributes.
        input_types, output_types: for each in turn the letter of its type and the types that it may have, both empty where nothing is
            said; those after these are like the last one. One letter is one type.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: tuple[bool, ...]
    attributes: Mapping[str, int] = MappingProxyType({})
    required: frozenset[str] = frozenset()
    is_closed: bool = True
    input_types: tuple[tuple[str, frozenset[str]], ...] = ()
    output_types: tuple[tuple[str, frozenset[str]], ...] = ()


def check_signatures(model: Any) -> None:
    """Checks all nodes of the main graph of a ModelProto without functions, and those of the graphs inside it.

    Raises:
        InvalidModelError: a node does not fit its operator; the error names it.
    """
    versions = {domain_of(item): item.version for item in model.opset_import}
    waiting = [model.graph.node]
    while waiting:
        for node in waiting.pop():
            domain = domain_of(node)
            found = signature(node.op_type, domain, versions.get(domain, 1))
            broken = _broken_payload(node.attribute)
            if broken is None and found is not None:
                broken = _broken_arity(node, found) or _broken_attribute(node.attribute, found) or _broken_value(node)
            if broken is not None:
                rule, reason = broken
                raise InvalidModelError(reason, where=f"{node.op_type} {node.name or next(iter(node.output), '')!r}", rule=rule)
            waiting += [graph.node for graph in subgraphs(node)]


def _broken_value(node: Any) -> Broken | None:
    """Why onnx's shape inference would end the process, or count for minutes, at a value of an attribute (onnx 1.22, each measured)."""
    values = {item.name: item.i for item in node.attribute}
    if node.op_type == "Split" and values.get("num_outputs", len(node.output)) != len(node.output):
        return "wrong-number-of-tensors", f"has {len(node.output)} outputs, but num_outputs is {values['num_outputs']}"
    if node.op_type == "GatherND" and values.get("batch_dims", 0) < 0:
        return "attribute-out-of-range", f"batch_dims is {values['batch_dims']}; it must be at least 0"
    return None


def type_reason(op_type: str, domain: str, version: int, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Why a node's types do not fit its operator, "" if they do; onnxruntime loads no model where they do not.

    Args:
        op_type, domain, version: of the node.
        inputs, outputs: canonical names of the types, as far as known; "" or "unknown" elsewhere.
    """
    found = signature(op_type, domain, version)
    if found is None:
        return ""
    bound: dict[str, str] = {}
    for what, given, stated in (("input", inputs, found.input_types), ("output", outputs, found.output_types)):
        for index, dtype in enumerate(given):
            if dtype in ("", "unknown") or not stated:
                continue
            letter, allowed = stated[min(index, len(stated) - 1)]
            if allowed and dtype not in allowed:
                return f"has {what} {index} of {dtype}, not {' or '.join(sorted(allowed))}"
            if letter and bound.setdefault(letter, dtype) != dtype:
                return f"has {what} {index} of {dtype}, not {bound[letter]}"
    return ""


def type_remedy(op_type: str, domain: str, version: int, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """The first later opset whose operator takes the types of a node, as a remedy; "" if there is none."""
    for later in range(version + 1, 0 if domain else newest_opset() + 1):
        if not type_reason(op_type, domain, later, inputs, outputs):
            return f"From opset {later} on {op_type} takes these types: export the model with that opset."
    return ""


@cache
def signature(op_type: str, domain: str, version: int) -> Signature | None:
    """The signature of an operator in an opset of its domain; None if nobody here knows it."""
    if domain in SIGNATURES:
        described = SIGNATURES[domain].get(op_type)
        return None if described is None else _contrib_signature(*described, OUTPUTS.get(op_type, (1, 1)))
    if not 0 < version < 2**31 or not defs.has_schema(op_type, version, domain):
        return None
    schema: Any = defs.get_schema(op_type, version, domain)  # the stubs of its enumerations lack their names
    constraints = {item.type_param_str: item for item in schema.type_constraints}
    optional = defs.OpSchema.FormalParameterOption.Optional
    return Signature(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(item.option != optional for item in schema.inputs),
        {name: int(AttributeType[attribute.type.name]) for name, attribute in schema.attributes.items()},
        frozenset(name for name, attribute in schema.attributes.items() if attribute.required),
        True,
        tuple(_types(item, constraints) for item in schema.inputs) if version <= newest_opset() or domain else (),
        tuple(_types(item, constraints) for item in schema.outputs) if version <= newest_opset() or domain else (),
    )


def _types(parameter: Any, constraints: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """The letter and the types of a parameter; nothing where each of many may have its own, or where it may be no tensor."""
    if not parameter.is_homogeneous:
        return "", frozenset()
    names = [text.removeprefix("tensor(").removesuffix(")") for text in parameter.types]
    letter = parameter.type_str if parameter.type_str in constraints else ""
    return letter, frozenset(_TYPE_NAMES.get(name, name) for name in names if "(" not in name)


def _contrib_signature(inputs: str, attributes: Mapping[str, str], outputs: tuple[int, int]) -> Signature:
    """From signatures.py's notation. Versions of onnxruntime differ in attributes, so others are let through."""
    names = inputs.split()
    needed = tuple(not name.endswith("?") for name in names)
    fewest = max(index + 1 for index, is_needed in enumerate(needed) if is_needed)
    types = {name: int(AttributeType[kind.rstrip("!")]) for name, kind in attributes.items()}
    required = frozenset(name for name, kind in attributes.items() if kind.endswith("!"))
    most = _ENDLESS if names[-1].endswith("*") else len(names)
    return Signature((fewest, most), outputs, needed, types, required, is_closed=False)


def _broken_arity(node: Any, signature: Signature) -> Broken | None:
    for what, given, (fewest, most) in (("inputs", node.input, signature.inputs), ("outputs", node.output, signature.outputs)):
        if not fewest <= len(given) <= most:
            wanted = f"at least {fewest}" if most >= _ENDLESS else str(fewest) if fewest == most else f"{fewest} to {most}"
            return "wrong-number-of-tensors", f"has {len(given)} {what[: -1 if len(given) == 1 else None]}, not {wanted}"
    if node.output and not any(node.output):
        return "output-missing", "gives none of its outputs a name"
    last = len(signature.needed) - 1
    for index, name in enumerate(node.input):
        if not name and last >= 0 and signature.needed[min(index, last)]:
            return "input-missing", f"lacks input {index}, which is not optional"
    return None


def _broken_payload(attributes: Iterable[Any]) -> Broken | None:
    """Why an attribute contradicts itself: a type that there is not, or a value of another one."""
    for item in attributes:
        if item.type not in _ATTRIBUTE_TYPES:
            return "attribute-type", f"does not state the type of its attribute {item.name!r}"
        stated = _ATTRIBUTE_TYPES[item.type]
        if any(value.name in _VALUES and value.name != stated.field for value, _ in item.ListFields()):
            return "attribute-type", f"has an attribute {item.name!r} of type {stated.name} that holds a value of another type"
    return None


def _broken_attribute(attributes: Iterable[Any], signature: Signature) -> Broken | None:
    given = set()
    for item in attributes:
        given.add(item.name)
        wanted = signature.attributes.get(item.name)
        if wanted is None:
            if signature.is_closed and not item.name.startswith("__"):  # onnx keeps such names for tools
                return "unknown-attribute", f"has the attribute {item.name!r}, which its operator does not have"
        elif item.type != wanted:
            return (
                "attribute-type",
                f"has an attribute {item.name!r} of type {_ATTRIBUTE_TYPES[item.type].name}, not {_ATTRIBUTE_TYPES[wanted].name}",
            )
    missing = signature.required - given
    return ("attribute-missing", f"lacks the attribute {min(missing)!r}") if missing else None


def require_types(nodes: Iterable[Any], known: Mapping[str, str], opset: int) -> None:
    """Follows types through nodes in order, and checks each against its operator's signature.

    Args:
        nodes: NodeProtos of the main graph; values whose type nothing says are let through.
        known: canonical types of inputs, constants and the graph's own tensors.
        opset: of ONNX's own domain.

    Raises:
        UnsupportedError: an operator takes or gives no value of such a type.
    """
    types = dict(known)
    for node in nodes:
        if node.domain not in DEFAULT_DOMAINS:
            continue
        inputs = [types.get(name, "") for name in node.input]
        reason = type_reason(node.op_type, "", opset, inputs, [types.get(name, "") for name in node.output])
        if reason:
            raise UnsupportedError(f"{node.op_type} of ONNX {reason}", where=node_label(node), rule="operand-types")
        cast = next((DTYPE_NAMES.get(item.i, "") for item in node.attribute if item.name == "to"), "")
        for index, name in enumerate(node.output):
            if name and name not in types:
                types[name] = cast if node.op_type == "Cast" else result_type(node.op_type, "", opset, index, inputs)


def result_type(op_type: str, domain: str, version: int, index: int, inputs: Sequence[str]) -> str:
    """The type of output `index` of a node, given those of its inputs; "" where these and the signature do not say it."""
    found = signature(op_type, domain, version)
    if found is None or not found.output_types:
        return ""
    letter, allowed = found.output_types[min(index, len(found.output_types) - 1)]
    if len(allowed) == 1:
        return next(iter(allowed))
    sides = zip(inputs, (*found.input_types, *found.input_types[-1:] * len(inputs)), strict=False)
    return next((dtype for dtype, (other, _) in sides if letter and other == letter and dtype), "")
