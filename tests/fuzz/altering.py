"""Changes of bytes, values, documents and lines, which the alterations of all formats are made of."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Rng = np.random.Generator

_INTEGERS = (0, 1, -1, 2, 3, 7, 64, 127, 128, 255, -128, 2**15, 2**16, 2**31 - 1, -(2**31), 2**31, 2**32, 2**40, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-45, 1e-30, 1e30, 3e38, -1.0, 0.5, 2.0)
_TEXTS = ("", "x", "\x1b[2J", "\n", "\0", "é" * 40, "n" * 5000, "../x", "NOTSET", "SAME_UPPER", "nearest", "int8", "onnx")
#: What a document may hold where something else is expected.
_VALUES = (None, True, False, 1e999, -1, 0, 1, 3, 2**31, 2**63, 2**70, -(2**63), "", "x", [], {}, [[]] * 3, {"float": "nan"}, "A" * 100,
           [1, "a"], 0.5, -0.5, 1e-45)  # fmt: skip
_WORDS = (
    "0", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "1e308", "1_0", "0x10", "7f800000", "00000000", "ffffffff", "3", "", "x", "=", ":",
    "bits=4", "block=64", "_param_0", "w_param_1", "_param_", "\0", "é" * 40, "n" * 300, "\x1b[2J", "\x85", "\u2028", "\ufeff", "TRT-1-x",
    "#", "99999999999", "1=0", "8=101", "6=-5", "-23310=9,1", "[", '"', ",",
)  # fmt: skip


def one(rng: Rng, values: Sequence[Any]) -> Any:
    """One of the values as it is: Generator.choice() would make an array of them."""
    return values[int(rng.integers(len(values)))]


def altered_bytes(data: bytes, rng: Rng) -> bytes:
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


def altered_value(value: Any, rng: Rng, pool: Sequence[str]) -> Any:
    """A value of the same sort that is another one, mostly at an edge of what there is."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | np.integer):
        near = (int(value) + 1, int(value) - 1, -int(value))
        return int(one(rng, near if rng.random() < 0.3 else _INTEGERS))
    if isinstance(value, float):
        return float(-value if rng.random() < 0.2 else one(rng, _FLOATS))
    if isinstance(value, str):
        return str(one(rng, pool if pool and rng.random() < 0.7 else _TEXTS))
    if isinstance(value, bytes):
        return b"" if not value or rng.random() < 0.2 else altered_bytes(value, rng)
    if isinstance(value, np.ndarray):
        return _altered_array(value, rng)
    if isinstance(value, list):
        return altered_list(value, rng)
    return value


def _altered_array(value: Any, rng: Rng) -> Any:
    found = value.copy()
    if not found.size or rng.random() < 0.3:
        return np.concatenate([found, found[:1]]) if rng.random() < 0.5 and found.size else found[:-1]
    place = rng.integers(found.size)
    if found.dtype.kind == "f":
        found[place] = one(rng, _FLOATS)
    else:
        found[place] = np.array(one(rng, _INTEGERS) % 2**64, np.uint64).astype(found.dtype)
    return found


def altered_list(value: Sequence[Any], rng: Rng) -> list[Any]:
    """The list with an item less, more or elsewhere, in another order, several times, or empty."""
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
    """(what holds it, its key, the value) for everything in dicts, lists and the tables of a FlatBuffer."""
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


def altered_tables(model: Any, rng: Rng) -> Any:
    """One to three fields of a FlatBuffer's tables changed, or left out."""
    places = [place for place in _places(model) if place[2] is not None]
    pool = [item.decode() for _, _, item in places if isinstance(item, bytes) and len(item) < 100 and item.isascii()]
    for _ in range(rng.integers(1, 4)):
        holder, key, value = one(rng, places)
        _put(holder, key, None if rng.random() < 0.1 and not isinstance(holder, list) else altered_value(value, rng, pool))
    return model


def altered_tree(document: Any, rng: Rng, words: Sequence[str] = ()) -> None:
    """Leaves out, moves, renames or changes one to three values of a JSON document, in their sort too; `words` are further texts."""
    for _ in range(rng.integers(1, 4)):
        places = list(_places(document))
        if not places:
            break
        holder, key, value = one(rng, places)
        pool = [item for _, _, item in places if isinstance(item, str) and len(item) < 100] + [str(place[1]) for place in places]
        match rng.integers(7):
            case 0 if isinstance(holder, dict):
                holder.pop(key)
            case 1:
                _put(holder, key, copy.deepcopy(one(rng, places)[2]))
            case 2:
                _put(holder, key, one(rng, _VALUES))
            case 3 if isinstance(value, dict) and value:
                value[str(one(rng, pool))] = value.pop(one(rng, list(value)))
            case 4 if isinstance(value, str) and words:
                _put(holder, key, one(rng, words))
            case _:
                _put(holder, key, altered_value(value, rng, pool))


def altered_json(data: bytes, rng: Rng, words: Sequence[str] = ()) -> bytes:
    """A document with one to three of its values changed."""
    document = json.loads(data)
    altered_tree(document, rng, words)
    return json.dumps(document).encode()


def altered_lines(data: bytes, rng: Rng) -> bytes:
    """A text with one to three changes of its words or lines."""
    lines = [line.split(" ") for line in data.decode().split("\n")]
    for _ in range(rng.integers(1, 4)):
        line = one(rng, lines)
        place = int(rng.integers(len(line))) if line else 0
        word = str(one(rng, _WORDS))
        match rng.integers(8):
            case 0 if line:
                line[place] = word
            case 1:
                line.insert(place, word)
            case 2 if line:
                del line[place]
            case 3 if line:
                line[place] = one(rng, (word + line[place], line[place] + word, line[place][:-1]))
            case 4 if line:
                key, sign, _ = line[place].partition("=")
                line[place] = key + (sign or "=") + word
            case 5:
                lines.append(list(line))
            case 6:
                other = one(rng, lines)
                line[:], other[:] = list(other), list(line)
            case _:
                line += ["1.5"] * int(rng.choice([1, 5, 3000]))
    return "\n".join(" ".join(line) for line in lines).encode()
