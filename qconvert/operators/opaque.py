"""Opaque: an operator outside this set, carried as it is.

From one file of a format to another of the same format it is the same operator. A custom one, which belongs to no runtime's own set,
goes to another format too: as TFLite's custom operator, as ONNX's node of the domain `tflite.custom`.
"""

from __future__ import annotations

from base64 import b64decode

from qconvert.errors import InvalidModelError
from qconvert.graph.schema import Op
from qconvert.operators.attributes import has, integer, text, texts
from qconvert.operators.kind import Kind
from qconvert.operators.sizes import unknown_shapes

#: The domain of TFLite's custom operators, in ONNX files too.
TFLITE_DOMAIN = "tflite.custom"
#: Domains whose operators belong to ONNX and onnxruntime. A node of these that is not covered is no custom one: it means something that
#: another format would have to state.
_OWN = ("", "ai.onnx", "com.microsoft", "com.ms.internal.nhwc")

#: Codes, or their first letters, of TFLite's custom operators with a compiler's result, and the compiler.
_COMPILED = {
    "ethos-u": "Arm's Vela for Ethos-U",
    "edgetpu-custom-op": "Google's Edge TPU compiler",
    "NeutronGraph": "NXP's Neutron converter",
    "DISPATCH_OP": "LiteRT's ahead-of-time compiler for NPUs",
    "vsi-npu": "VeriSilicon's compiler",
    "XC_": "XMOS's xformer for xcore",
}
#: What to do about the operators of a compiler.
BEFORE_COMPILER = "Convert the file from before the compiler."


def compiler_of(code: str) -> str:
    """The compiler that made the custom operator of a code; "" where it is none of a compiler."""
    return next((maker for start, maker in _COMPILED.items() if code == start or (start[-1] == "_" and code.startswith(start))), "")


def payload_of(op: Op) -> bytes:
    """The bytes that an Opaque operator carries; raises InvalidModelError if they are not in base64."""
    try:
        return b64decode(str(op["payload"]), validate=True)
    except ValueError as error:
        raise InvalidModelError("its payload is not base64", where=op.location, rule="damaged-payload") from error


def is_custom(op: Op) -> bool:
    """Whether an operator is one that somebody registers with a runtime, so that other formats may name it likewise."""
    if op.kind != "Opaque":
        return False
    domain = str(op["domain"])
    return op["format"] != "onnx" or not (domain in _OWN or domain.startswith(("ai.onnx.", "com.microsoft.")))


def custom_name(op: Op) -> str:
    """The name of a custom operator in reports."""
    return f"{op['domain']}.{op['op_type']}"


#: payload, in base64: of ONNX the node, without names; of TFLite the options of a custom operator, `op_type` being its code.
KINDS = (
    Kind(
        "Opaque",
        "data...?",
        "data...?",
        shape=unknown_shapes,
        rule="opaque",
        attributes=has(format=text(), domain=text(), op_type=text(), version=integer(), payload=text(""), captures=texts(())),
    ),
)
