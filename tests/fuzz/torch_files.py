"""Alters PyTorch's archives: what their pickles, code, JSON and storages say, packed again with right checksums; and makes random calls.

data = altered_archive(Path("model.pt").read_bytes(), np.random.default_rng(4711))
"""

from __future__ import annotations

import io
import pickletools
import re
import struct
import zipfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from fuzz.altering import Rng, altered_json, one

FIXTURES = Path(__file__).parents[2] / "fixtures" / "torch"
_LARGEST = 50_000
_NUMBERS = ("0", "1", "-1", "2", "3", "7", "13", "127", "255", "256", "-128", "65536", "2147483647", "4294967296", "1099511627776",
            "9223372036854775807", "-9223372036854775808", "0.", "0.5", "-0.5", "1e-45", "1e30", "1e999", "inf", "nan", "True", "False",
            "None", "[]", "[1]", "[-1]", "[2, 3]", "[0, 0]", "'x'", "(1, 2)", "{}", "x", "CONSTANTS.c0", "self")  # fmt: skip
_STATEMENTS = (
    "pass",
    "x = x",
    "x = [x, x]",
    "x = [x] * 65536",
    "y = [1]\n{0}y = torch.append(y, y)",
    "while True:\n{0}  x = x",
    "return x",
    "for i in range(1000000000000):\n{0}  x = torch.neg(x)",
    "x = torch.neg(x)",
    "x = x.forward(x)",
    "x, y = x",
    "x.y = x",
    "self.training = self",
    "x = self.training",
    "raise x",
    "assert False",
    "if True:\n{0}  x = None",
    "import os",
    "del x",
    "x = torch.zeros([65536])",
    "x = torch.list(range(1000000000000))",
    "ops.prim.RaiseException('x')",
    "x = lambda: 1",
    "x = max(range(1000000000000))",
    "x = torch.mul('x', 1000000000000)",
    "x = torch.add_(x, x)",
)
_OPCODES = (*(bytes([letter]) for letter in b"(t]}NaesuRbQ02."), b"\x81", b"\x85", b"\x86", b"\x87", b"\x94", b"h\x00", b"q\x00", b"h\x05",
            b"cposix\nsystem\n")  # fmt: skip
_TEXTS = ("", "x", "\x1b[2J", "é" * 40, "n" * 5000, "../x", "0", "99", "storage", "weight", "training", "forward", "2", "posix system")


def torch_seeds() -> dict[str, bytes]:
    """The small archives of fixtures/torch by name."""
    paths = [path for path in sorted(FIXTURES.rglob("*")) if path.suffix in (".pt", ".ptl", ".pt2")]
    return {str(path.relative_to(FIXTURES)): path.read_bytes() for path in paths if path.stat().st_size < _LARGEST}


def altered_archive(data: bytes, rng: Rng) -> bytes:
    """The archive with one to three of its entries, or the list of them, changed."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return _storage(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.08:
            entries = _renamed(entries, rng)
            continue
        kinds = [kind for kind in _KINDS if any(kind.applies(name) for name in entries)]
        kind = one(rng, kinds)
        name = one(rng, [name for name in entries if kind.applies(name)])
        entries[name] = kind.alter(entries[name], rng)
    return _packed(entries, rng.random() < 0.1)


def _packed(entries: dict[str, bytes], deflated: bool = False) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 0, 0, 0, 0, 0)), content, zipfile.ZIP_DEFLATED if deflated else None)
    return target.getvalue()


def _renamed(entries: dict[str, bytes], rng: Rng) -> dict[str, bytes]:
    """An entry left out, or two exchanged, or one under another name."""
    found, first, second = dict(entries), one(rng, list(entries)), one(rng, list(entries))
    match rng.integers(3):
        case 0:
            del found[first]
        case 1:
            found[first], found[second] = found[second], found[first]
        case _:
            found[first.rpartition("/")[0] + "/" + one(rng, ["0", "model.json", "data.pkl", "../x", "byteorder", "version"])] = found[
                second
            ]
    return found or entries


# code


def _code(content: bytes, rng: Rng) -> bytes:
    lines = content.decode().split("\n")
    bodies = [index for index, line in enumerate(lines) if line.startswith("    ")]
    if not bodies:
        return content
    place = one(rng, bodies)
    line = lines[place]
    indent = line[: len(line) - len(line.lstrip())]
    match rng.integers(9):
        case 0:
            del lines[place]
        case 1:
            lines[place:place] = [lines[place]]
        case 2:
            other = one(rng, bodies)
            lines[place], lines[other] = lines[other], lines[place]
        case 3:
            lines[place:place] = [indent + one(rng, _STATEMENTS).format(indent)]
        case 4:
            lines[place] = _replaced(line, r"(torch|ops\.quantized|ops\.prim)\.\w+", rng, lambda: _call_name(rng))
        case 5:
            names = re.findall(r"\b[a-zA-Z_]\w*\b", "\n".join(lines))
            lines[place] = _replaced(line, r"\b[a-zA-Z_]\w*\b", rng, lambda: one(rng, names))
        case _:
            lines[place] = _replaced(line, r"-?\b\d+(\.\d*)?(e-?\d+)?|\b(None|True|False)\b|\[[^\[\]]*\]", rng, lambda: one(rng, _NUMBERS))
    return "\n".join(lines).encode()


def _replaced(line: str, pattern: str, rng: Rng, new: Any) -> str:
    found = list(re.finditer(pattern, line))
    if not found:
        return line
    match = one(rng, found)
    return line[: match.start()] + new() + line[match.end() :]


@cache
def _operators() -> dict[str, Any]:
    from qconvert.formats.torch.ops import OPERATORS
    from qconvert.formats.torch.torchscript.numbers import NUMBERS

    return {**dict.fromkeys(NUMBERS, ()), **OPERATORS}


def _call_name(rng: Rng) -> str:
    namespace, name = one(rng, sorted(_operators())).split("::")
    return f"torch.{name}" if namespace == "aten" else f"ops.{namespace}.{name}"


# pickles


def _pickle(content: bytes, rng: Rng) -> bytes:
    """Opcodes left out, doubled, exchanged, or with another argument; texts keep their length byte right."""
    places = [place for _, _, place in pickletools.genops(content)] + [len(content)]
    ops = [content[start:end] for start, end in pairwise(places)]
    place = int(rng.integers(len(ops)))
    match rng.integers(6):
        case 0:
            del ops[place]
        case 1:
            ops[place:place] = [ops[place]] * int(rng.choice([1, 2, 100]))
        case 2:
            other = int(rng.integers(len(ops)))
            ops[place], ops[other] = ops[other], ops[place]
        case 3:
            ops[place:place] = [one(rng, _OPCODES)]
        case _:
            numbers = [index for index, op in enumerate(ops) if op[:1] in (b"K", b"M", b"J", b"G", b"X", b"h", b"q", b"c", b"\x8a")]
            if numbers:
                place = one(rng, numbers)
                ops[place] = _argument(ops[place], rng, ops)
    return b"".join(ops)


def _argument(op: bytes, rng: Rng, ops: list[bytes]) -> bytes:
    match op[:1]:
        case b"G":
            return b"G" + struct.pack(">d", one(rng, (0.0, -1.0, float("nan"), float("inf"), 1e-320, 1e300, 0.5)))
        case b"X":
            text = one(rng, _TEXTS).encode()
            return b"X" + len(text).to_bytes(4, "little") + text
        case b"h" | b"q":
            return op[:1] + bytes([int(rng.integers(64))])
        case b"c":
            return bytes(one(rng, [other for other in ops if other[:1] == b"c"]))
        case _:
            number = int(one(rng, (0, 1, 2, 3, 255, -1, 2**15, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63), 2**64)))
            if -(2**31) <= number < 2**31:
                return b"J" + number.to_bytes(4, "little", signed=True)
            return b"\x8a\x09" + number.to_bytes(9, "little", signed=True)


# JSON and storages


def _json(content: bytes, rng: Rng) -> bytes:
    """Places in the document with other values, the name of another operator among them."""
    return altered_json(content, rng, [f"torch.ops.{name.replace('::', '.')}.default" for name in sorted(_operators())])


def _storage(content: bytes, rng: Rng) -> bytes:
    found = bytearray(content)
    match rng.integers(4):
        case 0:
            return bytes(found[: int(rng.integers(len(found) + 1))])
        case 1:
            return bytes(found) * 2
        case _:
            for _ in range(rng.integers(1, 4)):
                kind = one(rng, ("<f", "<d", "<h", "<q"))
                size = struct.calcsize(kind)
                if len(found) >= size:
                    place = int(rng.integers(len(found) // size)) * size
                    numbers = (
                        (0.0, -1.0, float("nan"), float("inf"), 1e-40, 3e38) if kind in ("<f", "<d") else (0, -1, 1, 2**15 - 1, -(2**15))
                    )
                    found[place : place + size] = struct.pack(kind, one(rng, numbers))
            return bytes(found)


class _Kind:
    def __init__(self, pattern: str, alter: Any) -> None:
        self._pattern, self.alter = re.compile(pattern), alter

    def applies(self, name: str) -> bool:
        return self._pattern.search(name) is not None


_KINDS = (
    _Kind(r"/code/.*\.py$", _code),
    _Kind(r"\.pkl$", _pickle),
    _Kind(r"(models/|serialized_).*\.json$", _json),
    _Kind(r"config\.json$", _json),
    _Kind(r"/(data|constants|weights)/[^/]*(\d|\.storage)$", _storage),
    _Kind(r"/(version|byteorder|archive_format)$", lambda content, rng: one(rng, _TEXTS).encode()),
)


# random calls

_SHAPES = ((), (0,), (1,), (4,), (1, 1), (2, 3), (3, 0), (2, 3, 4), (1, 4, 6, 6), (2, 4, 5, 3), (1, 2, 4, 4, 3), (4, 4, 3, 3))
_SMALL = (-3, -2, -1, -1, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 5, 7, 1000, 2**31 - 1, -(2**31), 2**40, 2**62)
_REAL = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 3e38, 1e300, float("inf"), float("nan"))
_HEAD = "class Model(Module):\n  __parameters__ = []\n  __buffers__ = []\n  def forward(self: __torch__.Model,\n    x: Tensor) -> Tensor:\n"


def random_call(rng: Rng) -> bytes:
    """A TorchScript model of one operator whose inputs and arguments are drawn at random: of the right sorts, and mostly senseless."""
    from qconvert.formats.torch.ops import OPERATORS
    from qconvert.formats.torch.values import parse_signature

    key = one(rng, sorted(OPERATORS))
    overloads = OPERATORS[key]
    arguments = parse_signature(one(rng, list(overloads)).signature if isinstance(overloads, (list, tuple)) else overloads.signature)
    lines: list[str] = []
    given = []
    for argument in arguments:
        if argument.named or (rng.random() < 0.15 and given):
            break
        given.append(_given(argument, rng, lines))
    namespace, name = key.split("::")
    function = f"torch.{name}" if namespace == "aten" else f"ops.{namespace}.{name}"
    code = _HEAD + "".join(f"    {line}\n" for line in [*lines, f"y = {function}({', '.join(given)})", "return y"])
    data = b"\x80\x02c__torch__\nModel\nq\x00)\x81}(X\x08\x00\x00\x00trainingq\x01\x89ub."
    return _packed({"m/data.pkl": data, "m/code/__torch__.py": code.encode(), "m/constants.pkl": b"\x80\x02).", "m/version": b"3\n"})


def _given(argument: Any, rng: Rng, lines: list[str]) -> str:
    if argument.optional and rng.random() < 0.4:
        return "None"
    match argument.letter:
        case "T" | "q" | "x":
            return _tensor(rng, lines)
        case "t":
            return f"[{', '.join(_tensor(rng, lines) for _ in range(rng.integers(0, 4)))}]"
        case "i":
            return str(one(rng, _SMALL))
        case "f":
            return _real(rng)
        case "l":
            return _list(rng) if rng.random() < 0.8 else str(one(rng, _SMALL))
        case "r":
            return f"[{', '.join(_real(rng) for _ in range(rng.integers(0, 4)))}]"
        case "b":
            return one(rng, ("True", "False"))
        case "s":
            return repr(one(rng, ("nearest", "bilinear", "bicubic", "trunc", "floor", "none", "tanh", "sum", "reflect", "replicate",
                                   "circular", "constant", "same", "valid", "x", "", "ij,jk->ik")))  # fmt: skip
        case _:
            return one(rng, (_real(rng), str(one(rng, _SMALL)), "None", _tensor(rng, lines), _list(rng), "'x'"))


def _list(rng: Rng) -> str:
    size = int(rng.integers(0, 6))
    return str([int(one(rng, _SMALL))] * size if rng.random() < 0.3 else [int(one(rng, _SMALL)) for _ in range(size)])


def _real(rng: Rng) -> str:
    return str(float(one(rng, _REAL)))


def _tensor(rng: Rng, lines: list[str]) -> str:
    """A tensor of a known shape: of the input's elements, or constant; real, whole, or with a quantization."""
    name, shape = f"t{len(lines)}", list(one(rng, _SHAPES))
    number = one(rng, _SMALL)
    reshaped, ones = f"torch.reshape(x, {shape})", f"torch.ones({shape})"
    full = (f"torch.full({shape}, {_real(rng)})", f"torch.full({shape}, {number}, dtype=4)")
    made = one(rng, (reshaped, reshaped, f"torch.to({reshaped}, 4)", f"torch.to({reshaped}, 11)", ones, *full, "x"))
    if rng.random() < 0.3:
        scale, zero_point = one(rng, (0.1, 0.1, 0.004, 1e-30, 1e30)), one(rng, (0, 0, 3, 128))
        made = f"torch.quantize_per_tensor({made}, {scale}, {zero_point}, {one(rng, (12, 13, 14))})"
    lines.append(f"{name} = {made}")
    return name
