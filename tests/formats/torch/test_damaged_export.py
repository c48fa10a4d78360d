"""Programs whose JSON is damaged anywhere: one error, or a graph; no other exception, nothing large."""

from __future__ import annotations

import copy
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from qconvert.errors import InvalidModelError, QConvertError
from tests.torch_export import read

pytestmark = pytest.mark.formats

_FIXTURES = Path(__file__).parents[3] / "fixtures" / "torch"
_NETWORKS = [
    "single/qat_fbgemm",
    "small/pt2e_x86_dynamic",
    "small/pt2e_xnnpack_batch",
    "perceptron/torchao_int4_weight_program",
    "shapes/pt2e_xnnpack",
]
_VALUES: list[Any] = [
    None, True, 0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 1e308, float("nan"), float("inf"), -0.5, "", "x", [], {}, [[]], [1, 2, 3],
    {"as_int": 3}, {"as_int": 2**40}, {"as_ints": [-1, 0, 5]}, {"as_ints": [2**33, 2**33]}, {"as_float": float("nan")}, {"as_none": True},
    {"as_tensor": {"name": "x"}}, {"as_tensors": [{"name": "x"}, {"name": "x"}]}, {"as_string": "a"}, {"as_sym_int": {"as_name": "zz"}},
    "torch.ops.aten.add.Tensor", "torch.ops.aten.adaptive_avg_pool2d.default",
]  # fmt: skip


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where everything in a document stands."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(inner for key, item in items for inner in _places(item, (*place, key)))]


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _damaged(document: Any, choose: random.Random) -> Any:
    """The document with something else in one to three places, without it, or in another order."""
    found = copy.deepcopy(document)
    places = _places(found)[1:]
    for _ in range(choose.choice([1, 1, 2, 3])):
        *outer, last = choose.choice(places)
        try:
            around = _at(found, tuple(outer))
            how = choose.random()
            if how < 0.6:
                around[last] = copy.deepcopy(choose.choice(_VALUES))
            elif how < 0.8:
                around[last] = copy.deepcopy(_at(found, choose.choice(places)))
            elif how < 0.9:
                del around[last]
            elif isinstance(around, list):
                choose.shuffle(around)
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    return found


@pytest.mark.parametrize("name", _NETWORKS)
def test_a_damaged_program_is_one_error_or_a_graph(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(_FIXTURES / f"{name}.pt2") as archive:
        entries = {item.filename: archive.read(item) for item in archive.infolist()}
    key = next(entry for entry in entries if entry.endswith("models/model.json"))
    document = json.loads(entries[key])
    for node in document["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {}
    document["graph_module"]["module_call_graph"] = []
    choose = random.Random(name)
    read_anyway = 0
    for index in range(40):
        path = tmp_path / f"{index}.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            for entry, content in entries.items():
                archive.writestr(entry, json.dumps(_damaged(document, choose)) if entry == key else content)
        try:
            read(path)
            read_anyway += 1
        except QConvertError:
            pass
    assert 0 < read_anyway < 40


@pytest.mark.parametrize("size", [2**13, 2**33])
def test_a_pool_to_more_elements_than_anyone_has_is_refused(tmp_path: Path, size: int) -> None:
    from tests.torch_export import node, program, write

    made = node("aten.adaptive_avg_pool2d.default", "y", self="%x", output_size=[size, size])
    with refused(InvalidModelError, "too-many-elements", holds=(size,)):
        read(write(tmp_path / "m.pt2", program([made], {"x": ("float32", (1, 1, 4, 4))}, ["y"], {}), {}))


def test_json_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt2", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/models/model.json", "[" * 1_000_000)
    with refused(InvalidModelError, "damaged-program"):
        read(tmp_path / "m.pt2")
