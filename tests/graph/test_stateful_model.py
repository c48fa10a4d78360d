"""A network whose states are inputs and outputs, run again and again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from qconvert.errors import InvalidModelError
from qconvert.graph import Array, Tensor
from qconvert.graph.carried_states import Carried, StatefulModel, carried_text

_STATE = Carried("h", "h/next", Tensor("h", "float32", (2,), np.array([1, 10], np.float32)))
_VALUE = "float32", (2,)


class _Sum(StatefulModel):
    """Adds what it is given onto its state."""

    def compute(self, values: Mapping[str, Array]) -> dict[str, Array]:
        total = values["x"] + values["h"]
        return {"y": 2 * total, "h/next": total}


def test_a_state_goes_from_one_run_to_the_next_until_it_is_reset() -> None:
    model = _Sum(carried_text([_STATE]), {"x": _VALUE, "h": _VALUE}, {"y": _VALUE, "h/next": _VALUE})
    assert (list(model.inputs), list(model.outputs)) == (["x"], ["y"])
    one = {"x": np.ones(2, np.float32)}
    runs = [model.run(one) for _ in range(2)]
    assert [run["y"].tolist() for run in runs] == [[4, 22], [6, 24]] and runs[0].keys() == {"y"}
    model.reset()
    assert model.run(one)["y"].tolist() == [4, 22]


def test_states_that_the_network_lacks_are_refused() -> None:
    with pytest.raises(InvalidModelError) as caught:
        _Sum(carried_text([_STATE]), {"x": _VALUE}, {"y": _VALUE})
    assert caught.value.rule == "unknown-tensor"
