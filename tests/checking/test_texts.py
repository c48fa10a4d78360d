"""Texts as inputs of a check: perplexities by their definition, what windows have, and texts, tokenizers and models that do not fit."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused

import qconvert
from qconvert import check
from qconvert.cli.reports import check_document
from qconvert.data.texts import TextInputs, are_texts
from qconvert.errors import FileAccessError, InvalidModelError, MissingPackageError, OptionError
from qconvert.graph import Graph, Op, Tensor

WORDS = ("<unk>", "a", "b", "c", "d", "e", "f", "g")
SIZE = 6


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Words that are letters; the package that reads them is optional."""
    pytest.importorskip("tokenizers")
    vocabulary = {word: place for place, word in enumerate(WORDS)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    rest = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    text = json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model, **rest})
    (tmp_path / "tokenizer.json").write_text(text)
    return tmp_path / "tokenizer.json"


def language_model(path: Path, table: Any, weights: Any, length: int | str = "length") -> Path:
    """Logits of each token by itself: a row of a table times a matrix; a mask and places are read as well."""
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, length]) for name in ("input_ids", "attention_mask", "position_ids")]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, length, len(WORDS)])
    others = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, length]) for name in ("mask_too", "places_too")]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], axis=0),
        helper.make_node("MatMul", ["rows", "weights"], ["logits"]),
        helper.make_node("Identity", ["attention_mask"], ["mask_too"]),
        helper.make_node("Identity", ["position_ids"], ["places_too"]),
    ]
    constants = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in (("table", table), ("weights", weights))]
    graph = helper.make_graph(nodes, "g", ends, [logits, *others], constants)
    onnx.save(model_of(graph), path)
    return path


def perplexity(table: Any, weights: Any, windows: list[list[int]]) -> float:
    """By its definition."""
    losses = []
    for window in windows:
        for before, after in pairwise(window):
            logits = table[before].astype(np.float64) @ weights
            losses.append(-np.log(np.exp(logits[after]) / np.exp(logits).sum()))
    return float(np.exp(np.mean(losses)))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("length", ["length", 4])
def test_perplexity(length: int | str, tokenizer: Path, tmp_path: Path) -> None:
    """Windows have 4 tokens, by config.json or by the model; the last one has 3, and one of 1 token predicts nothing."""
    rng = np.random.default_rng(0)
    table, weights = (rng.normal(size=size).astype(np.float32) for size in ((len(WORDS), SIZE), (SIZE, len(WORDS))))
    noise = rng.normal(size=weights.shape).astype(np.float32) / 100
    first = language_model(tmp_path / "a.onnx", table, weights, length)
    second = language_model(tmp_path / "b.onnx", table, weights + noise, length)
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 4}}')
    (tmp_path / "one.txt").write_text("a b c d e f g")
    (tmp_path / "two.txt").write_text("g f unknown e d")
    windows = [[1, 2, 3, 4], [5, 6, 7], [7, 6, 0, 5]]
    texts = [tmp_path / "one.txt", tmp_path / "two.txt"]
    report = check(first, second, data=texts, quick=True)
    found = report.texts
    assert found is not None and (found.windows, found.tokens) == (3, 8)
    wanted = perplexity(table, weights, windows), perplexity(table, weights + noise, windows)
    assert found.perplexities == pytest.approx(wanted, rel=1e-6) and wanted[0] != wanted[1]
    rows = table[[place for window in windows for place in window]].astype(np.float64)
    logits, error = rows @ weights, rows @ (weights + noise) - rows @ weights
    assert found.sqnr_db == pytest.approx(10 * np.log10(np.square(logits).sum() / np.square(error).sum()), abs=0.01)
    assert check_document(report)["texts"]["tokens"] == 8 and not report.passed
    only = check(first, first, data=texts[:1], samples=1).texts
    assert only is not None and (only.windows, only.tokens, only.sqnr_db, len({*only.perplexities})) == (1, 3, None, 1)


def graph_of(**inputs: tuple[str, tuple[int | str, ...]]) -> Graph:
    tensors = {name: Tensor(name, dtype, shape) for name, (dtype, shape) in inputs.items()}
    tensors["logits"] = Tensor("logits", "float32", (1, "length", len(WORDS)))
    return Graph("g", tensors, (Op("Identity", (next(iter(inputs)),), ("logits",)),), tuple(inputs), ("logits",))


def test_what_else_a_model_takes(tokenizer: Path, tmp_path: Path) -> None:
    """A mask of the places with tokens, places from 0, and nothing before the window; a fixed length is filled up behind them."""
    (tmp_path / "t.txt").write_text("a b c")
    graph = graph_of(
        attention_mask=("int64", (1, 5)),
        input_ids=("int32", (1, 5)),
        position_ids=("int64", (1, 5)),
        token_type_ids=("int64", (1, 5)),
        **{"past_key_values.0.key": ("float32", ("batch", 2, "past", 4))},
    )
    found = TextInputs.read(graph, [tmp_path / "t.txt"], [tmp_path / "nowhere", tmp_path], 3)
    assert found.tokens == 2 and found.output == "logits" and found.tokenizer == tokenizer
    (feed,) = found.feeds
    assert {name: value.tolist() for name, value in feed.items() if value.size} == {
        "input_ids": [[1, 2, 3, 0, 0]],
        "attention_mask": [[1, 1, 1, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 4]],
        "token_type_ids": [[0] * 5],
    }
    assert feed["past_key_values.0.key"].shape == (1, 2, 0, 4) and feed["input_ids"].dtype == np.int32


def test_what_does_not_fit(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a b c")
    (tmp_path / "short.txt").write_text("a")
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    ids, texts = ("int64", (1, "length")), [tmp_path / "t.txt"]

    def fails(kind: type[qconvert.QConvertError], rule: str, graph: Graph, data: list[Path], folder: Path = tmp_path) -> None:
        with refused(kind, rule):
            TextInputs.read(graph, data, [folder], 3)

    fails(OptionError, "no-language-model", graph_of(x=("float32", (1, 4))), texts)
    fails(OptionError, "no-language-model", graph_of(a=ids, b=ids), texts)
    fails(OptionError, "no-language-model", graph_of(ids=("int64", (2, 4))), texts)
    fails(OptionError, "no-language-model", graph_of(input_ids=ids, image=("float32", (1, 3))), texts)
    fails(OptionError, "ambiguous-output", graph_of(ids=ids).evolve(outputs=("ids",)), texts)
    fails(OptionError, "tokenizer-missing", graph_of(ids=ids), texts, tmp_path / "nowhere")
    fails(OptionError, "no-samples", graph_of(ids=ids), [tmp_path / "short.txt"])
    fails(FileAccessError, "not-readable", graph_of(ids=ids), [tmp_path / "latin.txt"])
    tokenizer.write_text("{}")
    fails(InvalidModelError, "damaged-config", graph_of(ids=ids), texts)


@pytest.mark.onnxruntime
def test_a_tokenizer_of_another_model(tokenizer: Path, tmp_path: Path) -> None:
    stated = json.loads(tokenizer.read_text())
    stated["model"]["vocab"]["h"] = 900
    tokenizer.write_text(json.dumps(stated))
    (tmp_path / "t.txt").write_text("a h")
    rng = np.random.default_rng(0)
    path = language_model(tmp_path / "a.onnx", rng.normal(size=(1000, SIZE)), rng.normal(size=(SIZE, len(WORDS))))
    with refused(OptionError, "logits-do-not-fit"):
        check(path, path, data=[tmp_path / "t.txt"])


def test_texts_without_what_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not are_texts(["a.npz", "folder"])
    with refused(OptionError, "texts-and-others"):
        are_texts(["a.npz", "b.txt"])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refused(MissingPackageError, "package-missing") as caught:
        check(tmp_path / "a.onnx", tmp_path / "b.onnx", data=["b.txt"])
    assert "qconvert[texts]" in caught.value.remedy


@pytest.mark.formats
def test_texts_are_not_prepared(tokenizer: Path, tmp_path: Path) -> None:
    with refused(OptionError, "option-not-applicable"):
        check(tmp_path / "a.onnx", tmp_path / "b.onnx", data=["b.txt"], preparation=qconvert.Preparation(mean=(1.0,)))
