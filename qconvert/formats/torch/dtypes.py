"""The numbers and names by which files of PyTorch name storage types: c10::ScalarType in TorchScript, another numbering in .pt2 files.

Sources: c10/core/ScalarType.h; torch/_export/serde/schema.py (ScalarType).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["EXPORT", "FLOAT_QPARAMS_STORAGES", "NAMES", "QUANTIZED", "SCALAR_TYPES", "STORAGES"]

#: c10::ScalarType, as TorchScript's code and pickles number types.
SCALAR_TYPES: Mapping[int, str] = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 9: "complex64", 11: "bool",
    12: "qint8", 13: "quint8", 14: "qint32", 15: "bfloat16", 16: "quint4x2", 17: "quint2x4",
    23: "float8e5m2", 24: "float8e4m3fn", 25: "float8e5m2fnuz", 26: "float8e4m3fnuz", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
#: The numbering of the JSON in a .pt2 file.
EXPORT: Mapping[int, str] = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 10: "complex64", 12: "bool",
    13: "bfloat16", 28: "uint16", 29: "float8e4m3fn", 30: "float8e5m2", 31: "float8e4m3fnuz", 32: "float8e5m2fnuz",
}  # fmt: skip
#: Types that carry a scale and a zero point, and what they store.
QUANTIZED: Mapping[str, str] = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "quint4x2": "uint8", "quint2x4": "uint8"}
#: torch.float32 and so on, as pickles of dtypes name them; "half" and the like are other names of the same.
NAMES: Mapping[str, str] = {
    **{name: name for name in (*SCALAR_TYPES.values(), *QUANTIZED) if not name.startswith("float8")},
    "half": "float16", "float": "float32", "double": "float64", "short": "int16", "int": "int32", "long": "int64",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)},
    "float8_e5m2": "float8e5m2", "float8_e4m3fn": "float8e4m3fn", "float8_e5m2fnuz": "float8e5m2fnuz", "float8_e4m3fnuz": "float8e4m3fnuz",
}  # fmt: skip
#: Classes of storages in pickles.
STORAGES: Mapping[str, str] = {
    "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64",
    "HalfStorage": "float16", "FloatStorage": "float32", "DoubleStorage": "float64", "BoolStorage": "bool", "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "complex64", "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4", "UntypedStorage": "uint8",
}  # fmt: skip
#: Storages with fewer bytes than elements, and how many elements a byte holds.
FLOAT_QPARAMS_STORAGES: Mapping[str, int] = {"quint4x2": 2, "quint2x4": 4}
