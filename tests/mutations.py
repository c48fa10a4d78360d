"""Damages and alters model files, and converts them: nothing but a result or one clear error may come of it.

    python tests/mutations.py --count 100000 --seed 1           # about as many files of each format
    python tests/mutations.py --count 5000 --format onnx
    python tests/mutations.py --format onnx --seed 1 --only 4711 --keep /tmp/4711.onnx

Seeds are small files, one or more for each operator. A third of the files hold one operator with random inputs and attributes
(random_files.py); the others are mutations of seeds: a mutation flips bytes, cuts, or changes what a file says: a number, a type, a name,
an order, a length. Every file is loaded and converted to every format in a worker that has LIMIT_S seconds of computing and 20 times the
file plus 200 MB of memory; what was written is read again. A finding is an exception that is no QConvertError, a signal, a limit passed,
a result that cannot be read, or a file left behind.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import os
import pickle
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "targets")]

import numpy as np  # noqa: E402
from mnn_mutations import altered_json, altered_mnn, mnn_seeds, mnn_suffix, read_scales  # noqa: E402
from random_files import random_file  # noqa: E402
from scale_mutations import altered_scales, apply_scales, scale_seeds, scale_suffix  # noqa: E402
from torch_mutations import altered, random_call, torch_seeds  # noqa: E402

__all__ = ["FORMATS", "SOURCES", "Finding", "mutated", "search", "seeds"]

FORMATS = ("tflite", "onnx", "qgraph")
#: What is read; PyTorch's files are written by PyTorch alone, MNN's and those beside a model ("scales") are documents of scales.
SOURCES = (*FORMATS, "torch", "mnn", "scales")
_SUFFIXES = {"torch": "pt"}
LIMIT_S = 2
MEMORY, MEMORY_TIMES = 200 * 2**20, 20
FIXTURES = Path(__file__).parent.parent / "fixtures"

_INTEGERS = (0, 1, -1, 2, 3, 7, 64, 127, 128, 255, -128, 2**15, 2**16, 2**31 - 1, -(2**31), 2**31, 2**32, 2**40, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-45, 1e-30, 1e30, 3e38, -1.0, 0.5, 2.0)
_TEXTS = ("", "x", "\x1b[2J", "\n", "\0", "é" * 40, "n" * 5000, "../x", "NOTSET", "SAME_UPPER", "nearest", "int8", "onnx")
Rng = np.random.Generator


# seeds


@cache
def seeds(format: str) -> dict[str, bytes]:
    """Small sound files of a format by name."""
    makers = {"tflite": _tflite_seeds, "onnx": _onnx_seeds, "qgraph": _qgraph_seeds}
    return {**makers, "torch": torch_seeds, "mnn": mnn_seeds, "scales": scale_seeds}[format]()


def _tflite_seeds() -> dict[str, bytes]:
    from custom_models import custom_model
    from one_operator import CASES, model_of

    found = {"custom": custom_model(), "custom uint8": custom_model("FlexErf", dtype="uint8")}
    found |= {"seanet": (FIXTURES / "tflm_seanet_conv_int16x8.tflite").read_bytes()}
    for name in CASES:
        for dtype in ("int8", "float32"):
            made = next(filter(None, (model_of(name, dtype, rank) for rank in (4, 3, 2))), None)
            if made is not None:
                found[f"{name} {dtype}"] = made[0]
    return found | _recurrent_seeds()


@cache
def _recurrent_seeds() -> dict[str, bytes]:
    """Files of TFLite with variables, kept tensors, functions, loops and signatures."""
    from float_recurrent_files import Cells, integer_basic_lstm_file, lstm_file, rnn_file
    from lstm_files import Lstm, real_lstm_file, svdf_file

    small = [*(FIXTURES / "recurrent").glob("*.tflite"), *(FIXTURES / "keras").glob("*.tflite")]
    found = {path.name: path.read_bytes() for path in sorted(small) if path.stat().st_size < 18_000}
    for name, layer in {
        "plain": Lstm(),
        "peephole": Lstm(peephole=True, projection=True, outputs=4),
        "norm": Lstm(norm=True, rows=2),
    }.items():
        found[f"lstm {name}"] = layer.file()
    found |= {
        "lstm both ways": lstm_file(Cells(ways=2, aux=3, steps=2, outputs=4, peephole=True)),
        "lstm norm real": lstm_file(Cells(norm=True, steps=2, has_input_gate=False)),
        "lstm basic": integer_basic_lstm_file()[0],
        "rnn both ways": rnn_file(Cells(ways=2, aux=5, steps=2, merge=True)),
        "rnn": rnn_file(Cells(rows=2), single=True),
    }
    found |= {"lstm real": real_lstm_file(), "lstm hybrid": real_lstm_file(weights="int8", cell_clip=1.0), "svdf": svdf_file()[0]}
    return found | {"variables": _with_variables()}


def _with_variables() -> bytes:
    """y = x + s; s = y, with a first value."""
    from tflite_models import OpSpec, TensorSpec, model

    handles = [OpSpec("VAR_HANDLE", [], [name], {"sharedName": "s", "container": ""}) for name in "hv"]
    first = TensorSpec("c", (2,), "float32", data=np.float32([5, -1]))
    once = [handles[1], OpSpec("ASSIGN_VARIABLE", ["v", "c"], [])], [TensorSpec("v", (), "resource"), first], [], []
    ops = [
        OpSpec("CALL_ONCE", [], [], {"initSubgraphIndex": 1}), handles[0], OpSpec("READ_VARIABLE", ["h"], ["old"]),
        OpSpec("ADD", ["x", "old"], ["y"]), OpSpec("ASSIGN_VARIABLE", ["h", "y"], []),
    ]  # fmt: skip
    tensors = [TensorSpec("h", (), "resource"), *(TensorSpec(name, (2,), "float32") for name in ("x", "old", "y"))]
    return model(ops, tensors, ["x"], ["y"], further=[once])


def _onnx_seeds() -> dict[str, bytes]:
    from custom_models import foreign_model
    from onnx_networks import NETWORKS, build

    small = [path for path in sorted((FIXTURES / "onnx").glob("*.onnx")) if path.stat().st_size < 25_000]
    found = {path.name: path.read_bytes() for path in small}
    found |= {name: build(name, network).SerializeToString() for name, network in NETWORKS.items()}
    found |= {"functions and subgraphs": _with_functions()}
    found |= {"foreign": foreign_model(alpha=0.5, names=["a", "b"], ints=[1, 2]).SerializeToString()}
    for form in ("qdq", "qoperator"):
        found |= {f"{name} {form}": data for name, data in _converted("onnx", form=form).items()}
    return found


def _qgraph_seeds() -> dict[str, bytes]:
    return _converted("qgraph")


def _converted(format: str, **options: Any) -> dict[str, bytes]:
    """The quantized seeds of TFLite in another format."""
    from qconvert import QConvertError, convert

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "m.tflite"), Path(folder, f"m.{format}")
        for name, data in seeds("tflite").items():
            if name.endswith("float32"):
                continue
            source.write_bytes(data)
            try:
                convert(source, result, force=True, **options)
            except QConvertError:  # an operator that the format lacks
                continue
            found[name] = result.read_bytes()
    return found


def _with_functions() -> bytes:
    from onnx import parser

    text = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]> g (float[4] x, bool c) => (float[4] y) {
        a = local.f <alpha = 0.5> (x)
        y = If (c) <then_branch = t () => (float[4] u) { u = local.f <alpha = 0.2> (a) },
                    else_branch = e () => (float[4] v) { v = Abs (x) }> }
        <domain: "local", opset_import: ["" : 17]> f <alpha> (p) => (r) { q = LeakyRelu <alpha: float = @alpha> (p) r = Neg (q) }
        <domain: "local", opset_import: ["" : 17]> unused (p) => (r) { r = Neg (p) }"""
    data: bytes = parser.parse_model(text).SerializeToString()
    return data


# mutations


def mutated(format: str, seed: int, index: int) -> tuple[str, bytes]:
    """Which seed was taken, and the altered file: always the same for one (format, seed, index)."""
    rng = np.random.default_rng([seed, SOURCES.index(format), index])
    if rng.random() < 0.3 and format not in ("mnn", "scales"):
        return "a random operator", random_call(rng) if format == "torch" else random_file(format, rng)
    names = list(seeds(format))
    name = names[rng.integers(len(names))]
    data = seeds(format)[name]
    for _ in range(20):
        kind = rng.integers(10)
        alter: Callable[[bytes, Rng], bytes] = _bytes_altered if kind < (1 if format == "torch" else 3) else _ALTER[format]
        try:
            found = alter(data, rng)
        except (OverflowError, TypeError, ValueError, AttributeError, MemoryError, LookupError) as error:  # the value does not fit a file
            del error
            continue
        except Exception as error:
            if type(error).__module__ not in ("struct", "google.protobuf.message"):
                raise
            continue
        if found != data:
            return name, found
    return name, data[:-1]


def _bytes_altered(data: bytes, rng: Rng) -> bytes:
    """Some bits or words changed, a piece cut out, doubled, moved or filled, or the end cut off."""
    found = bytearray(data)
    place = int(rng.integers(len(found)))
    span = int(rng.integers(1, 1 + min(len(found) - place, 64)))
    match rng.integers(7):
        case 0:
            return bytes(found[:place])
        case 1:
            del found[place : place + span]
        case 2:
            found[place:place] = found[place : place + span]
        case 3:
            found[place : place + span] = bytes([int(rng.choice([0, 255, 128, 1]))]) * span
        case 4:
            for _ in range(rng.integers(1, 6)):
                word = int(rng.integers(len(found))) // 4 * 4
                found[word : word + 4] = (int(rng.choice(_INTEGERS)) % 2**32).to_bytes(4, "little")
        case _:
            for _ in range(rng.integers(1, 9)):
                found[rng.integers(len(found))] ^= 1 << int(rng.integers(8))
    return bytes(found)


def _altered(value: Any, rng: Rng, pool: list[str]) -> Any:
    """A value of the same sort that is another one, mostly at an edge of what there is."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | np.integer):
        return (
            int(rng.choice([int(value) + 1, int(value) - 1, -int(value)]))
            if rng.random() < 0.3
            else int(_INTEGERS[rng.integers(len(_INTEGERS))])
        )
    if isinstance(value, float):
        return float(-value if rng.random() < 0.2 else _FLOATS[rng.integers(len(_FLOATS))])
    if isinstance(value, str):
        return str(pool[rng.integers(len(pool))]) if pool and rng.random() < 0.7 else _TEXTS[rng.integers(len(_TEXTS))]
    if isinstance(value, bytes):
        return b"" if not value or rng.random() < 0.2 else _bytes_altered(value, rng)
    if isinstance(value, np.ndarray):
        return _array_altered(value, rng)
    if isinstance(value, list):
        return _list_altered(value, rng)
    return value


def _array_altered(value: Any, rng: Rng) -> Any:
    found = value.copy()
    if not found.size or rng.random() < 0.3:
        return np.concatenate([found, found[:1]]) if rng.random() < 0.5 and found.size else found[:-1]
    place = rng.integers(found.size)
    if found.dtype.kind == "f":
        found[place] = _FLOATS[rng.integers(len(_FLOATS))]
    else:
        found[place] = np.array(_INTEGERS[rng.integers(len(_INTEGERS))] % 2**64, np.uint64).astype(found.dtype)
    return found


def _list_altered(value: list[Any], rng: Rng) -> list[Any]:
    found = list(value)
    if not found:
        return found
    place, other = (int(rng.integers(len(found))) for _ in range(2))
    match rng.integers(5):
        case 0:
            del found[place]
        case 1:
            found.insert(other, copy.deepcopy(found[place]))
        case 2:
            found[place], found[other] = found[other], found[place]
        case 3:
            rng.shuffle(found)  # type: ignore[arg-type]
        case _:
            found = found * int(rng.integers(2, 5)) if rng.random() < 0.3 else []
    return found


def _places(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(what holds it, its key, the value) for everything in dicts, lists and the tables of a TFLite file."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        items = vars(value).items() if hasattr(value, "__dict__") else ()
    for key, item in list(items):
        yield value, key, item
        yield from _places(item)


def _put(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, dict | list):
        holder[key] = value
    else:
        setattr(holder, key, value)


def _tflite(data: bytes, rng: Rng) -> bytes:
    """Fields of the file's tables changed, and packed again."""
    from qconvert.formats.flatbuffers import packed, unpacked
    from qconvert.formats.tflite import schema

    return packed(altered_tables(unpacked(schema.root(data)), rng), b"TFL3")


def altered_tables(model: Any, rng: Rng) -> Any:
    """One to three fields of a FlatBuffer's tables changed, or left out."""
    places = [place for place in _places(model) if place[2] is not None]
    pool = [item.decode() for _, _, item in places if isinstance(item, bytes) and len(item) < 100 and item.isascii()]
    for _ in range(rng.integers(1, 4)):
        holder, key, value = places[rng.integers(len(places))]
        _put(holder, key, None if rng.random() < 0.1 and not isinstance(holder, list) else _altered(value, rng, pool))
    return model


def _qgraph(data: bytes, rng: Rng) -> bytes:
    """Values of the header or of the graph document changed, also in their sort, and the length in front set right."""
    import json

    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["qgraph"])
    tree = header if rng.random() < 0.15 else document
    places = list(_places(tree))
    pool = [item for _, _, item in places if isinstance(item, str) and len(item) < 100] + [str(key) for _, key, _ in places]
    for _ in range(rng.integers(1, 4)):
        holder, key, value = places[rng.integers(len(places))]
        chance = rng.random()
        if chance < 0.1 and isinstance(holder, dict):
            holder.pop(key, None)
        elif chance < 0.3:
            _put(holder, key, copy.deepcopy(places[rng.integers(len(places))][2]))
        elif chance < 0.4:
            others = [None, True, 1e999, -1, 2**70, "", [], {}, [[]] * 3, {"float": "nan"}, "A" * 100, [1, "a"]]
            _put(holder, key, others[rng.integers(len(others))])
        elif isinstance(value, dict) and value:
            value[str(pool[rng.integers(len(pool))])] = value.pop(list(value)[rng.integers(len(value))])
        else:
            _put(holder, key, _altered(value, rng, pool))
    if tree is document:
        header["__metadata__"]["qgraph"] = json.dumps(document)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _onnx(data: bytes, rng: Rng) -> bytes:
    """Fields of the protobuf's messages changed."""
    from onnx import ModelProto

    model = ModelProto.FromString(data)
    messages = list(_messages(model))
    pool = [name for message in messages for name in _names(message)]
    notes = [item for item in model.metadata_props if item.value[:1] in ("[", "{")]
    if notes and rng.random() < 0.3:
        note = notes[rng.integers(len(notes))]
        note.value = altered_json(note.value.encode(), rng).decode()
        return bytes(model.SerializeToString())
    for _ in range(rng.integers(1, 4)):
        message = messages[rng.integers(len(messages))]
        fields = list(message.DESCRIPTOR.fields)
        present = [field for field, _ in message.ListFields()]
        field = fields[rng.integers(len(fields))] if rng.random() < 0.2 or not present else present[rng.integers(len(present))]
        _alter_field(message, field, rng, pool, messages)
    found: bytes = model.SerializeToString()
    return found


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                yield from _messages(item)


def _names(message: Any) -> list[str]:
    if message.DESCRIPTOR.name == "NodeProto":
        return [*message.input, *message.output, message.op_type]
    return [message.name] if message.DESCRIPTOR.name in ("TensorProto", "ValueInfoProto", "AttributeProto") else []


def _alter_field(message: Any, field: Any, rng: Rng, pool: list[str], messages: list[Any]) -> None:
    is_message = field.message_type is not None
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.is_repeated:
        values = getattr(message, field.name)
        items = [copy.deepcopy(item) for item in values] if is_message else list(values)
        if items and not is_message and rng.random() < 0.6:
            place = rng.integers(len(items))
            items[place] = _altered(items[place], rng, pool)
        else:
            items = _list_altered(items, rng) if items else [_fresh(field, rng, pool, messages)]
        del values[:]
        values.extend(item for item in items if item is not None)
    elif is_message:
        other = _fresh(field, rng, pool, messages)
        if other is not None:
            getattr(message, field.name).CopyFrom(other)
    else:
        value = getattr(message, field.name)
        setattr(message, field.name, int(rng.integers(0, 20)) if field.enum_type else _altered(value, rng, pool))


def _fresh(field: Any, rng: Rng, pool: list[str], messages: list[Any]) -> Any:
    """A value for a field: a copy of another message of its kind, or a number or a text."""
    if field.message_type is not None:
        same = [item for item in messages if item.DESCRIPTOR.name == field.message_type.name]
        return copy.deepcopy(same[rng.integers(len(same))]) if same else None
    if field.enum_type is not None:
        return int(rng.integers(0, 20))
    return _altered({"string": "", "bytes": b"x", "float": 0.0, "double": 0.0}.get(_sort(field), 0), rng, pool)


def _sort(field: Any) -> str:
    return {field.TYPE_STRING: "string", field.TYPE_BYTES: "bytes", field.TYPE_FLOAT: "float", field.TYPE_DOUBLE: "double"}.get(
        field.type, ""
    )


_ALTER: dict[str, Callable[[bytes, Rng], bytes]] = {
    "tflite": _tflite, "onnx": _onnx, "qgraph": _qgraph, "torch": altered, "mnn": altered_mnn, "scales": altered_scales,
}  # fmt: skip


# the search


@dataclass(frozen=True)
class Finding:
    """A mutation of which something else came than a result or one clear error."""

    format: str
    index: int
    seed_name: str
    what: str


def search(format: str, seed: int, indices: range, *, each: bool = True) -> tuple[Counter[str], list[Finding]]:
    """What became of the mutations: how often what, and the findings.

    Args:
        format: of the files.
        seed, indices: of the mutations.
        each: whether every file is converted to every format, not to one of them in turn.
    """
    for name in (*FORMATS, format):
        seeds(name)
    _warm(format)
    outcomes: Counter[str] = Counter()
    findings: list[Finding] = []
    position = indices.start
    while position < indices.stop:
        for index, words in _worker(format, seed, range(position, indices.stop), each):
            position = index + 1
            for what in words:
                outcomes[what.split(":")[0]] += 1
                if what.startswith("!!!"):
                    findings.append(Finding(format, index, mutated(format, seed, index)[0], what.removeprefix("!!! ")))
    return outcomes, findings


def _warm(format: str) -> None:
    """Imports in the parent what every worker needs."""
    with tempfile.TemporaryDirectory() as folder:
        for data in list(seeds(format).values())[:3]:
            _tried(data, format, Path(folder), FORMATS, limited=False)


def _worker(format: str, seed: int, indices: range, each: bool) -> Iterator[tuple[int, list[str]]]:
    """(index, what came of it) for as many as the worker lives; the last is the one that ended it."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        faulthandler.disable()  # pytest's own copy of the error stream
        for category in (RuntimeWarning, SyntaxWarning, UserWarning):  # what a user would see beside the result
            warnings.simplefilter("error", category)
        with os.fdopen(write, "wb") as stream, tempfile.TemporaryDirectory(prefix="mutations") as folder:
            for index in indices:
                pickle.dump((index, None), stream)
                stream.flush()
                others = FORMATS if each else (FORMATS[index % len(FORMATS)],)
                words = _tried(mutated(format, seed, index)[1], format, Path(folder), others)
                pickle.dump((index, words), stream)
                stream.flush()
                if any("MB" in word for word in words):  # the mark of the largest size never sinks
                    break
        os._exit(0)
    os.close(write)
    last, done = indices.start - 1, True
    with os.fdopen(read, "rb") as stream:
        while True:
            try:
                last, words = pickle.load(stream)
            except EOFError:
                break
            done = words is not None
            if done:
                yield last, words
    _, status = os.waitpid(child, 0)
    if not done:
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status}"
        yield last, [f"!!! {f'over {LIMIT_S} s of computing' if name == 'SIGPROF' else name}"]


def _tried(data: bytes, format: str, folder: Path, others: Sequence[str], *, limited: bool = True) -> list[str]:
    """Loads and converts one file: what came of each conversion, findings with !!! in front."""
    from qconvert import convert, load

    suffixes = {"mnn": mnn_suffix, "scales": scale_suffix}
    source = folder / f"m.{suffixes[format](data) if format in suffixes else _SUFFIXES.get(format, format)}"
    source.write_bytes(data)
    if limited:
        base = _resident()
    if format in suffixes:
        words, others = [_outcome(partial(read_scales if format == "mnn" else apply_scales, source))], ()
    else:
        words = [_outcome(partial(load, source))]
    if words == ["done"] and others:
        words = []
        for other in others:
            result = folder / f"r.{other}"
            words.append(f"{_outcome(partial(convert, source, result))}")
            if words[-1] == "done" and (again := _outcome(partial(load, result))).startswith(("invalid", "!!!")):
                words[-1] = f"!!! written to {other}, but not read: {again.removeprefix('!!! ')}"
            if not words[-1].startswith("done") and result.exists() and "written" not in words[-1]:
                words.append(f"!!! a result of {other} beside an error")
            result.unlink(missing_ok=True)
    if limited:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base
        if used > MEMORY + MEMORY_TIMES * len(data):
            words.append(f"!!! {used // 2**20} MB for {len(data)} bytes")
    left = [path.name for path in folder.iterdir() if path != source]
    if left:
        words.append(f"!!! left behind: {left}")
        for name in left:
            (folder / name).unlink()
    source.unlink()
    return words


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _outcome(action: Callable[[], Any]) -> str:
    from qconvert import QConvertError
    from qconvert.errors import InternalError

    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        action()
    except InternalError as error:
        return f"!!! InternalError: {str(error)[:200]}"
    except QConvertError as error:
        return f"{error.code}: {error}" if str(error) else "!!! an error without words"
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/qconvert/" in frame.filename]
        place = f"{frames[-1].filename.rpartition('/qconvert/')[2]}:{frames[-1].lineno}" if frames else "?"
        return f"!!! {type(error).__name__} in {place}: {str(error)[:120]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "done"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=SOURCES)
    parser.add_argument("--only", type=int, help="show one mutation's outcome")
    parser.add_argument("--keep", type=Path, help="write the file of --only there")
    given = parser.parse_args()
    if given.only is not None:
        name, data = mutated(given.format, given.seed, given.only)
        if given.keep:
            given.keep.write_bytes(data)
        print(name, len(data), "bytes:", search(given.format, given.seed, range(given.only, given.only + 1)))
        return
    chosen = [given.format] if given.format else list(SOURCES)
    failed = False
    for format in chosen:
        started, count = time.perf_counter(), given.count // len(chosen)
        outcomes, findings = search(format, given.seed, range(given.start, given.start + count))
        rate = count / (time.perf_counter() - started)
        print(f"{format}: {count} files, {rate:.0f} a second; " + ", ".join(f"{n} {what}" for what, n in outcomes.most_common()))
        groups: dict[str, list[Finding]] = {}
        for item in findings:
            groups.setdefault(re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "_", item.what)[:120], []).append(item)
        for items in sorted(groups.values(), key=len, reverse=True):
            print(f"  {len(items)} x {items[0].what[:300]}")
            print(f"      again: --format {format} --seed {given.seed} --only {items[0].index} ({items[0].seed_name})", flush=True)
        failed = failed or bool(findings)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
