"""The JSON Schema of what commands print with --json, from the classes of the reports: docs/json.schema.json.

python docs/make_schemas.py            writes it
python docs/make_schemas.py --check    says whether it is up to date
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from make_operators import DOCS, written

from qconvert import AuditReport, BatchReport, BenchmarkReport, CheckReport, ConversionReport, PassCost, RoundtripReport, TargetAudits
from qconvert.cli.outcome import VERSION

PAGE = DOCS / "json.schema.json"
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_TEXTS = {"type": "array", "items": {"type": "string"}}
#: Document -> the class whose fields it has, and further fields.
REPORTS: Mapping[str, tuple[type, Mapping[str, Any]]] = {
    "convert": (ConversionReport, {}),
    "check": (CheckReport, {"verdict": {"enum": ["passed", "as declared", "not equal", "inconclusive"]}, "passed": {"type": "boolean"}}),
    "audit": (AuditReport, {"otherwise": {"type": "array"}}),
    "roundtrip": (RoundtripReport, {"verdict": {"type": "string"}, "passed": {"type": "boolean"}}),
    "audit-all": (TargetAudits, {}),
    "benchmark": (BenchmarkReport, {}),
    "batch": (BatchReport, {"counts": {"type": "object", "additionalProperties": {"type": "integer"}}}),
}
#: Documents that no class stands after: the fields that each has.
_TENSOR = {"name": {"type": "string"}, "dtype": {"type": "string"}, "shape": {"type": "array", "items": {"type": "integer"}}}
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "accuracy": {"verdict": {"type": "string"}, "passed": {"type": "boolean"}, "top1": {"type": "array"}, "difference": {"type": "number"}},
    "calibrate": {"tensors": {"type": "array"}, "warnings": _TEXTS, "notes": _TEXTS, "result": {"type": "string"}},
    "diff": {"equal": {"type": "boolean"}, "summary": _TEXTS, "differences": _TEXTS},
    "error": {"error": {"type": "string"}, "reason": {"type": "string"}},
    "extract-scales": {
        "result": {"type": "string"},
        "activations": {"type": "integer"},
        "constants": {"type": "integer"},
        "changes": _TEXTS,
    },
    "formats": {name: {"type": "array"} for name in ("formats", "targets", "passes", "runtimes")},
    "partition": {"regions": {"type": "array"}},
    "passes": {"items": {"type": "array"}},
    "passes-costs": {"items": {"type": "array", "items": {"$ref": "#/$defs/PassCost"}}},
    "plugins": {"items": {"type": "array"}},
    "run": {
        "ran": {"type": "string"},
        "inputs": {"type": "integer"},
        "notes": _TEXTS,
        "tensors": {"type": "array", "items": {"type": "object", "required": list(_TENSOR), "properties": _TENSOR}},
    },
}


def schema() -> dict[str, Any]:
    """The schema of every document; `schema` in a document says which it is."""
    known: dict[str, Any] = {}
    documents = {}
    for name, (kind, more) in REPORTS.items():
        reference = _schema(kind, known)
        documents[name] = {"allOf": [reference], **_object(name, more)}
    documents |= {name: _object(name, fields) for name, fields in OTHERS.items()}
    _schema(PassCost, known)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What the commands of qconvert print with --json",
        "oneOf": list(documents.values()),
        "$defs": dict(sorted(known.items())),
    }


def _object(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    stated = {"schema": {"const": f"qconvert/{name}/{VERSION}"}, **fields}
    return {"title": name, "type": "object", "required": list(stated), "properties": stated}


def _schema(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; classes go into `known` and are referred to."""
    origin, inside = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in known:
            known[kind.__name__] = {}
            hints = get_type_hints(kind)
            fields = {field.name.rstrip("_"): _schema(hints[field.name], known) for field in dataclasses.fields(kind) if field.repr}
            known[kind.__name__] = {"type": "object", "required": list(fields), "properties": fields}
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(item, known) for item in inside]}
    if origin in (tuple, list, Sequence) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        items = [item for item in inside if item is not ...]
        return {"type": "array", "items": _schema(items[0], known)} if len(set(items)) == 1 else {"type": "array"}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(inside[1], known)}
    return {"type": _PLAIN[kind]} if kind in _PLAIN else {}


if __name__ == "__main__":
    raise SystemExit(written({PAGE: json.dumps(schema(), indent=1) + "\n"}, sys.argv[1:]))
