"""Inputs of a language model from texts: windows of token ids by the tokenizer.json that lies next to a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import FileAccessError, InvalidModelError, MissingPackageError, OptionError
from qconvert.files.documents import json_next_to
from qconvert.files.names import require_there
from qconvert.graph import Array, Graph, Tensor, numpy_dtype

_SUFFIX, _TOKENIZER, _CONFIG = ".txt", "tokenizer.json", "config.json"
_LARGEST_TEXT, _LARGEST_CONFIG = 64_000_000, 16_000_000
#: Tokens of a window, where the model takes any number and config.json states no less.
_WINDOW = 512
_CONTEXT = ("max_position_embeddings", "n_positions")


def are_texts(data: Sequence[str | Path]) -> bool:
    """Whether data are texts.

    Raises:
        OptionError: some are, and others are not.
        MissingPackageError: they are, and the package tokenizers is not installed.
    """
    found = [Path(path).suffix.lower() == _SUFFIX for path in data]
    if any(found) and not all(found):
        raise OptionError("the data are texts and other inputs", remedy="Check with one kind at a time.", rule="texts-and-others")
    if any(found):
        try:
            import tokenizers  # noqa: F401
        except ImportError as error:
            raise MissingPackageError(
                "texts need the package tokenizers", remedy="Install it with: pip install 'qconvert[texts]'", rule="package-missing"
            ) from error
    return any(found)


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Windows of texts as inputs of a language model.

    Attributes:
        feeds: the inputs of each window.
        ids: int64, its token ids; a window of a model with a fixed length is filled up after them.
        output: the name of the output with a row of logits for each place.
        tokenizer: the file.
    """

    feeds: list[dict[str, Array]]
    ids: list[Array]
    output: str
    tokenizer: Path

    @classmethod
    def read(cls, graph: Graph, texts: Sequence[str | Path], folders: Sequence[Path], samples: int) -> TextInputs:
        """The first windows of texts.

        Args:
            graph: of the model.
            texts: files in UTF-8.
            folders: in which tokenizer.json is looked for, in this order.
            samples: how many windows at most.

        Raises:
            FileAccessError: a file cannot be read.
            InvalidModelError: tokenizer.json is damaged.
            OptionError: there is no tokenizer.json, the texts have fewer than 2 tokens, or the model's inputs and outputs are not those of
                a language model.
        """
        name, output = _find_ids(graph), _find_logits(graph)
        tokenizer = next((file for folder in folders if (file := folder / _TOKENIZER).is_file()), None)
        if tokenizer is None:
            raise OptionError(
                f"there is no {_TOKENIZER} next to the model, by which texts become inputs",
                file=", ".join(dict.fromkeys(map(str, folders))),
                remedy=f"Put the {_TOKENIZER} of the model there.",
                rule="tokenizer-missing",
            )
        length = (graph[name].shape or ())[1]
        window = length if isinstance(length, int) else min(_WINDOW, _context(tokenizer.parent))
        ids = [part for text in texts for part in _cut(_encode(tokenizer, Path(text)), window)][:samples]
        if not ids:
            raise OptionError("the texts have fewer than 2 tokens", file=", ".join(map(str, texts)), rule="no-samples")
        feeds = [_make_feed(graph, name, part, length if isinstance(length, int) else len(part)) for part in ids]
        return cls(feeds, ids, output, tokenizer)

    @property
    def tokens(self) -> int:
        """How many tokens are predicted: all but the first of each window."""
        return sum(len(part) - 1 for part in self.ids)


def _encode(tokenizer: Path, text: Path) -> Array:
    """The token ids of a text, with the special tokens that the tokenizer puts around it."""
    from tokenizers import Tokenizer

    require_there(text)
    try:
        with text.open("rb") as stream:
            content = stream.read(_LARGEST_TEXT + 1)
        if len(content) > _LARGEST_TEXT:
            raise OptionError(f"the text has more than {_LARGEST_TEXT} bytes, as many as are read", file=str(text), rule="text-too-long")
        words = content.decode()
    except (OSError, ValueError) as error:
        raise FileAccessError(f"cannot be read as a text in UTF-8: {error}", file=str(text), rule="not-readable") from error
    try:
        found: Any = Tokenizer.from_file(str(tokenizer))
        found.no_truncation()
        found.no_padding()
        return np.array(found.encode(words).ids, np.int64)
    except Exception as error:  # the package raises this class itself
        raise InvalidModelError(f"the tokenizer cannot be used: {error}", file=str(tokenizer), rule="damaged-config") from error


def _cut(ids: Array, window: int) -> list[Array]:
    """Windows after one another; the last one may be shorter, and is left out where it has no token to predict."""
    return [ids[first : first + window] for first in range(0, len(ids), window) if len(ids) - first > 1]


def _context(folder: Path) -> int:
    """How many tokens the model takes at most, by config.json."""
    file = folder / _CONFIG
    stated = json_next_to(file, _LARGEST_CONFIG) if file.is_file() else None
    inner = stated.get("text_config") if isinstance(stated, dict) else None
    found = [place.get(key) for place in (stated, inner) if isinstance(place, dict) for key in _CONTEXT]
    return min((size for size in found if type(size) is int and size > 1), default=_WINDOW)


def _find_ids(graph: Graph) -> str:
    """The input that takes token ids [1, L]."""
    found = [name for name in graph.inputs if _is_ids(graph[name])]
    named = [name for name in found if "ids" in name and "input" in name] or [name for name in found if _kind(name) is None]
    if len(named) != 1 or graph[named[0]].shape[0] not in (1, *_names(graph[named[0]])):  # type: ignore[index]
        raise OptionError(
            "the model has not one input of token ids, integers of shape [1, length], which texts are for",
            file=graph.name,
            remedy="Give arrays for its inputs in a .npz file.",
            rule="no-language-model",
        )
    return named[0]


def _find_logits(graph: Graph) -> str:
    """The output of shape [1, L, vocabulary]."""
    found = [name for name in graph.outputs if len(graph[name].shape or ()) == 3]
    named = [name for name in found if "logits" in name] or found
    if len(named) != 1:
        raise OptionError(
            f"{len(named)} outputs could be the logits, of shape [1, length, vocabulary]", file=graph.name, rule="ambiguous-output"
        )
    return named[0]


def _is_ids(tensor: Tensor) -> bool:
    return tensor.dtype in ("int32", "int64") and len(tensor.shape or ()) == 2


def _names(tensor: Tensor) -> list[str]:
    return [size for size in tensor.shape or () if isinstance(size, str)]


def _kind(name: str) -> str | None:
    """What an input besides token ids is, by its name."""
    return next((kind for kind in ("mask", "position", "token_type", "past", "cache") if kind in name.lower()), None)


def _make_feed(graph: Graph, ids: str, tokens: Array, length: int) -> dict[str, Array]:
    """The inputs of a window of `length` places: ids, and what the model takes besides, with nothing before the window."""
    found = {}
    for name in graph.inputs:
        tensor, kind = graph[name], _kind(name)
        dtype = numpy_dtype(tensor.dtype)
        if name == ids:
            found[name] = np.pad(tokens, (0, length - len(tokens))).astype(dtype)[None]
        elif kind in ("mask", "position", "token_type") and _is_ids(tensor):
            places = np.arange(length)
            values = {"mask": places < len(tokens), "position": places, "token_type": np.zeros(length)}[kind]
            found[name] = values.astype(dtype)[None]
        elif kind in ("past", "cache") and tensor.shape is not None and _names(tensor):
            sizes = [size if isinstance(size, int) else int(not place) for place, size in enumerate(tensor.shape)]
            found[name] = np.zeros(sizes, dtype)
        else:
            raise OptionError(
                f"a text does not say what the input {name!r} is",
                file=graph.name,
                remedy="Export the model with input ids alone, or give arrays for its inputs in a .npz file.",
                rule="no-language-model",
            )
    return found
