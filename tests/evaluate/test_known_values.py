"""Values known before a model runs, and the memory that they may take."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qconvert.evaluate.folding import LARGEST
from qconvert.evaluate.known_values import GROWTH, KnownValues
from qconvert.graph import Op, Tensor


def chain(count: int, elements: int, shape: tuple[int, ...]) -> tuple[dict[str, Tensor], dict[str, Op]]:
    """`count` Expands of one constant, each doubled by an Add."""
    tensors = {
        "c": Tensor("c", "float32", (elements,), np.ones(elements, np.float32)),
        "n": Tensor("n", "int64", (len(shape),), np.array(shape, np.int64)),
    }
    producers = {}
    for i in range(count):
        for name, op in ((f"e{i}", Op("Expand", ("c", "n"), (f"e{i}",))), (f"m{i}", Op("Add", (f"e{i}", f"e{i}"), (f"m{i}",)))):
            tensors[name] = Tensor(name, "float32", shape)
            producers[name] = op
    return tensors, producers


def test_many_large_values_of_a_small_file_are_not_known() -> None:
    tensors, producers = chain(40, 2**18, (8, 2**18))  # 1 MB of constants, 40 times 2 values of 8 MB
    known = KnownValues(tensors, producers)
    tracemalloc.start()
    found = [known.get(f"m{i}") for i in range(40)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] is not None and float(found[0].max()) == 2
    assert sum(data is not None for data in found) == LARGEST // (2 * 2**23)
    assert peak < 2 * LARGEST


def test_large_constants_may_have_large_values() -> None:
    tensors, producers = chain(3, 2**23, (2**23,))  # 32 MB of constants, 6 values of 32 MB
    known = KnownValues(tensors, producers)
    assert [known.get(f"m{i}") is not None for i in range(3)] == [True, True, False]
    assert GROWTH * 2**25 == 4 * 2**25


def test_views_cost_nothing() -> None:
    data = np.zeros((2**12, 2**12), np.float32)  # 64 MB
    tensors = {"c": Tensor("c", "float32", data.shape, data)}
    producers = {}
    before = "c"
    for i in range(50):
        name = f"t{i}"
        tensors[name] = Tensor(name, "float32", data.shape)
        producers[name] = Op("Transpose", (before,), (name,), {"perm": (1, 0)})
        before = name
    found = KnownValues(tensors, producers).get(before)
    assert found is not None and np.shares_memory(found, data)


@pytest.mark.property
@given(st.lists(st.sampled_from(["Add", "Mul", "Max"]), min_size=1, max_size=30), st.data())
def test_chains_are_known_if_and_only_if_no_input_is_among_them(kinds: list[str], data: st.DataObject) -> None:
    tensors = {"x": Tensor("x", "int64", (2,)), "c": Tensor("c", "int64", (2,), np.array([3, 5]))}
    producers: dict[str, Op] = {}
    depends, value = {"x": True, "c": False}, {"c": np.array([3, 5])}
    function = {"Add": np.add, "Mul": np.multiply, "Max": np.maximum}
    for i, kind in enumerate(kinds):
        a, b = (data.draw(st.sampled_from(sorted(tensors))) for _ in range(2))
        name = f"v{i}"
        producers[name] = Op(kind, (a, b), (name,))
        tensors[name] = Tensor(name, "int64", (2,))
        depends[name] = depends[a] or depends[b]
        if not depends[name]:
            with np.errstate(over="ignore"):
                value[name] = function[kind](value[a], value[b])
    known = KnownValues(tensors, producers)
    for name, unknown in depends.items():
        found = known.get(name)
        assert (found is None) == unknown
        assert unknown or np.array_equal(found, value[name])


def test_an_operator_of_very_many_constants_is_looked_at_once() -> None:
    class Counted(dict[str, Op]):
        asked = 0

        def get(self, name: str, default: object = None) -> Op | None:  # type: ignore[override]
            Counted.asked += 1
            return dict.get(self, name)

    count = 3000
    tensors = {f"c{i}": Tensor(f"c{i}", "int64", (1,), np.array([i])) for i in range(count)}
    tensors |= {f"n{i}": Tensor(f"n{i}", "int64", (1,)) for i in range(count)} | {"y": Tensor("y", "int64", (count,))}
    ops = {f"n{i}": Op("Neg", (f"c{i}",), (f"n{i}",)) for i in range(count)}
    producers = Counted(ops | {"y": Op("Concat", tuple(ops), ("y",), {"axis": 0})})
    found = KnownValues(tensors, producers).get("y")
    assert found is not None and found.tolist() == [-i for i in range(count)]
    assert Counted.asked == 2 * count + 1


def test_nothing_is_known_in_a_cycle() -> None:
    tensors = {name: Tensor(name, "float32", (2,)) for name in "abc"} | {"k": Tensor("k", "float32", (2,), np.ones(2, np.float32))}
    ops = (Op("Add", ("b", "k"), ("a",)), Op("Identity", ("a",), ("b",)), Op("Identity", ("c",), ("c",)))
    known = KnownValues(tensors, {op.outputs[0]: op for op in ops})
    assert [known.get(name) for name in "bac"] == [None, None, None]
    assert known.get("k") is not None
