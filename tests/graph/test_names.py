"""Names for new tensors: free ones, the lowest number first, and quickly however many want the same."""

from __future__ import annotations

from time import process_time

from qconvert.graph import Names


def test_lowest_free_number() -> None:
    taken, more = {"a", "a_1", "b_1"}, {"a_2": None}
    names = Names(taken, more)
    assert [names.fresh("a"), names.fresh("b"), names.fresh("c")] == ["a_3", "b", "c"]
    assert names.fresh("a") == "a_3"  # nobody took it
    more["a_3"] = None
    taken.add("b")
    assert [names.fresh("a"), names.fresh("b")] == ["a_4", "b_2"]


def test_many_want_one_name() -> None:
    taken: set[str] = set()
    names = Names(taken)
    started = process_time()
    for _ in range(30_000):
        taken.add(names.fresh("sum"))
    assert {"sum", "sum_1", "sum_29999"} <= taken and len(taken) == 30_000
    assert process_time() - started < 5  # with a search from the first number each time: minutes
