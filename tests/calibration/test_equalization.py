"""Cross-layer equalization computes the same network; ranges of weights come together."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.calibration import equalize
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Tensor

pytestmark = pytest.mark.onnxruntime


def network(activation: str = "Relu", *, public: bool = False) -> Graph:
    """Conv, depthwise Conv, Conv, mean over space, and two Gemms; channels differ a hundredfold, and what reads them makes up for it."""
    rng = np.random.default_rng(0)
    tensors = {"x": Tensor("x", "float32", (1, 3, 8, 8))}
    ops: list[Op] = []

    of_a, of_b, of_d = (10 ** rng.uniform(-1, 1, size) for size in (6, 6, 5))

    def constant(name: str, *shape: int, factors: object = 1.0) -> str:
        tensors[name] = Tensor(name, "float32", shape, np.asarray(rng.normal(size=shape) * factors, np.float32))
        return name

    def add(kind: str, name: str, shape: tuple[int, ...], inputs: tuple[str, ...], **attributes: object) -> str:
        tensors[name] = Tensor(name, "float32", shape)
        ops.append(Op(kind, inputs, (name,), attributes))  # type: ignore[arg-type]
        return name

    plain = {"data_format": "channels_first", "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    image = {**plain, "pads": (1, 1, 1, 1)}
    along = np.s_[:, None, None, None]
    wa, ba = constant("wa", 6, 3, 3, 3, factors=of_a[along]), constant("ba", 6, factors=of_a)
    wb, bb = constant("wb", 6, 1, 3, 3, factors=(of_b / of_a)[along]), constant("bb", 6, factors=of_b)
    wc = constant("wc", 4, 3, 3, 3, factors=1 / of_b.reshape(2, 3).repeat(2, axis=0)[:, :, None, None])
    a = add("Conv", "a", (1, 6, 8, 8), ("x", wa, ba), **image)
    a = add(activation, "a'", (1, 6, 8, 8), (a,))
    b = add("Conv", "b", (1, 6, 8, 8), (a, wb, bb), group=6, **image)
    b = add("Relu", "b'", (1, 6, 8, 8), (b,))
    c = add("Conv", "c", (1, 4, 6, 6), (b, wc), group=2, **plain)
    c = add("GlobalAveragePool", "m", (1, 4, 1, 1), (c,), data_format="channels_first")
    tensors["size"] = Tensor("size", "int64", (2,), np.array([1, 4], np.int64))
    c = add("Reshape", "r", (1, 4), (c, "size"))
    d = add("Gemm", "d", (1, 5), (c, constant("wd", 5, 4, factors=of_d[:, None]), constant("bd", 5, factors=of_d)))
    d = add("LeakyRelu", "d'", (1, 5), (d,))
    add("Gemm", "y", (1, 2), (d, constant("we", 2, 5, factors=1 / of_d)))
    return Graph("net", tensors, tuple(ops), ("x",), ("y", "a'") if public else ("y",))


def run(graph: Graph, x: Array) -> Array:
    return np.asarray(evaluate(graph, {"x": x})["y"])


def spread(graph: Graph, name: str) -> float:
    ranges = np.abs(graph[name].data).reshape(graph[name].shape[0], -1).max(axis=1)  # type: ignore[arg-type, index]
    return float(ranges.max() / ranges.min())


X = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)


@pytest.mark.cross_section
def test_outputs_stay_and_ranges_come_together() -> None:
    graph = network()
    found, (note,) = equalize(graph)
    assert note.startswith("3 pairs of layers are equalized")
    np.testing.assert_allclose(run(found, X), run(graph, X), rtol=2e-5)
    for first, second, depthwise in (("wa", "wb", True), ("wd", "we", False)):
        one, two = found[first].data, found[second].data
        assert one is not None and two is not None
        outgoing = np.abs(one).reshape(len(one), -1).max(axis=1)
        incoming = np.abs(two).reshape(len(two), -1).max(axis=1) if depthwise else np.abs(two).max(axis=0)
        np.testing.assert_allclose(outgoing, incoming, rtol=0.01)
    assert spread(found, "wa") < spread(graph, "wa")
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == {name: tensor.shape for name, tensor in graph.tensors.items()}


def test_what_is_seen_outside_stays() -> None:
    graph = network(public=True)
    found, (note,) = equalize(graph)
    assert note.startswith("2 pairs")
    np.testing.assert_array_equal(found["wa"].data, graph["wa"].data)


def test_a_sigmoid_is_not_passed() -> None:
    _, (note,) = equalize(network("Sigmoid"))
    assert note.startswith("2 pairs")


def test_nothing_to_equalize() -> None:
    graph = network()
    alone = graph.evolve(ops=graph.ops[:1], outputs=("a",))
    assert equalize(alone) == (alone, ("no two layers have only Relus and pools between them: nothing is equalized",))


def test_dead_channels_stay() -> None:
    graph = network()
    weights = graph["wa"].data.copy()  # type: ignore[union-attr]
    weights[1] = 0
    graph = graph.evolve(tensors=[Tensor("wa", "float32", weights.shape, weights)])
    found, _ = equalize(graph)
    assert np.isfinite(run(found, X)).all()
    np.testing.assert_allclose(run(found, X), run(graph, X), rtol=2e-5)


def test_per_tensor_weights_lose_less() -> None:
    """What the method is for."""
    from qconvert.arithmetic import dequantize, quantize
    from qconvert.calibration import weight_quantization

    def error(graph: Graph) -> float:
        rounded = []
        for name in ("wa", "wb", "wc", "wd", "we"):
            data = graph[name].data
            assert data is not None
            quantization = weight_quantization(data, axis=None).quantization
            rounded.append(
                Tensor(name, "float32", data.shape, dequantize(quantize(data, quantization, "int8"), quantization).astype(np.float32))
            )
        return float(np.abs(run(graph.evolve(tensors=rounded), X) - run(graph, X)).max())

    graph = network()
    assert error(equalize(graph)[0]) < 0.5 * error(graph)
