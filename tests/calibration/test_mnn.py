"""MNN's own scales, made by its tools in child processes on generated images, are the observers', bit for bit.

The observers see the activations that MNN's callbacks give. What MNN does not search is stated here: pools have the scale of their input.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from qconvert import convert, extract_scales, save
from qconvert.calibration import observer, weight_quantization
from qconvert.calibration.mnn import PACK, OfMnn, kl_threshold
from qconvert.files.system import describe_exit, quote_output
from qconvert.formats.mnn.network import read_network
from qconvert.graph import Array

pytestmark = pytest.mark.skipif(find_spec("MNN") is None, reason="MNN is not installed")
FIXTURES = Path(__file__).parents[2] / "fixtures"
IMAGES = 3

CONVERT = (
    "import _tools; _tools.mnnconvert(['mnnconvert', '-f', 'ONNX', '--modelFile', 'model.onnx', '--MNNModel', 'a.mnn', '--bizCode', 'x'])"
)
QUANTIZE = "import sys, _tools; _tools.mnnquant(['mnnquant', 'a.mnn', sys.argv[1] + '.mnn', sys.argv[1] + '.config'])"
#: Every input and output of every operator, of each sample, as MNN's callbacks have them; names of operators hold any characters.
RUN = """
import json, MNN, numpy as np
net = MNN.Interpreter('a.mnn')
session = net.createSession({'numThread': 1})
kinds, values = {}, {}
def tensor(array):
    return MNN.Tensor(array.shape, MNN.Halide_Type_Float, array, MNN.Tensor_DimensionType_Caffe)
def seen(side):
    def callback(tensors, info):
        for i, found in enumerate(tensors):
            array = np.zeros(found.getShape(), np.float32)
            host = tensor(array)
            found.copyToHostTensor(host)
            key = json.dumps([info.getName(), side, i])
            kinds[key] = info.getType()
            values.setdefault(key, []).append(np.array(host.getNumpyData(), np.float32).reshape(array.shape))
        return True
    return callback
for sample in np.load('samples.npy'):
    net.getSessionInput(session).copyFrom(tensor(np.ascontiguousarray(sample)))
    net.runSessionWithCallBackInfo(session, seen('inputs'), seen('outputs'))
np.savez('values.npz', **{str(i): np.stack(found) for i, found in enumerate(values.values())})
json.dump([[key, kinds[key]] for key in values], open('keys.json', 'w'))
"""


def child(folder: Path, code: str, *arguments: str) -> None:
    """MNN's failures end the process."""
    command = [sys.executable, "-P", "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False)
    if done.returncode:
        pytest.fail(f"MNN {describe_exit(done.returncode)}{quote_output(done.stdout)}")


class Seen(NamedTuple):
    """A tensor of the network: what wrote it, its values in each sample, and its place in the dump's operators."""

    kind: str
    samples: Sequence[Array]
    is_input: bool = False


class Network(NamedTuple):
    folder: Path
    values: Mapping[tuple[str, str, int], Seen]
    name: str
    samples: Array

    def dump(self, name: str, **config: Any) -> dict[int, tuple[np.float32, Seen]]:
        """Tensor index -> MNN's scale and the tensor, of all that MNN gives one and its callbacks show."""
        inputs = [{"name": self.name, "shape": self.samples.shape[1:]}]
        shared = {"path": "samples/", "input_type": "sequence", "used_sample_num": IMAGES, "weight_quantize_method": "MAX_ABS"}
        (self.folder / f"{name}.config").write_text(json.dumps({**shared, "inputs": inputs, **config}))
        child(self.folder, QUANTIZE, name)
        found: dict[int, tuple[np.float32, Seen]] = {}
        for place, entry in self._entries(json.loads((self.folder / f"{name}.mnn.json").read_text())):
            scale, seen = np.float32(entry["scales"][0]), self.values.get(place)
            if place == (self.name, "outputs", 0):
                seen = Seen("Input", self.samples, is_input=True)
            if scale and seen is not None and (entry["tensorIndex"] not in found or place[1] == "outputs"):
                found[entry["tensorIndex"]] = scale, seen
        return found

    def _entries(self, document: Any) -> Iterator[tuple[tuple[str, str, int], Any]]:
        for op in document:
            for side in ("inputs", "outputs"):
                yield from (((op["name"], side, i), entry) for i, entry in enumerate(op.get(side, [])))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """ResNet8 in float, and what it computes of generated images: bright spots on gradients, with noise."""
    folder = tmp_path_factory.mktemp("mnn") / "net"
    folder.mkdir()
    network, _ = extract_scales(FIXTURES / "tiny_resnet_cifar10_int8.tflite")
    save(network, folder / "model.qgraph")
    convert(folder / "model.qgraph", folder / "model.onnx", io_layout="nchw")
    model = onnx.load(folder / "model.onnx")
    name = model.graph.input[0].name
    rng = np.random.default_rng(11)
    for tensor in model.graph.initializer:  # real weights, not integers times a scale
        array = onnx.numpy_helper.to_array(tensor)
        if array.ndim > 1:
            noisy = (array * (1 + 0.1 * rng.normal(size=array.shape))).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(noisy, tensor.name))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, folder / "model.onnx")
    child(folder, CONVERT)
    y, x = np.mgrid[:32, :32]
    images = []
    for _ in range(IMAGES):
        centers, colours = rng.uniform(0, 32, (4, 2)), rng.uniform(0, 255, (4, 3))
        spots = sum(
            np.exp(-((y - a) ** 2 + (x - b) ** 2) / 60)[:, :, None] * colour for (a, b), colour in zip(centers, colours, strict=True)
        )
        images.append(np.clip(spots + rng.normal(0, 12, (32, 32, 3)) + 2 * x[:, :, None], 0, 255).astype(np.uint8))
    samples = np.stack(images).transpose(0, 3, 1, 2)[:, None].astype(np.float32)
    np.save(folder / "samples.npy", samples)
    for i, sample in enumerate(samples):  # as text: MNN's reading of images writes beyond the end of tensors with three channels
        (folder / "samples" / str(i)).mkdir(parents=True)
        (folder / "samples" / str(i) / f"{name}.txt").write_text("\n".join(f"{value:.9g}" for value in sample.reshape(-1)))
        (folder / "samples" / str(i) / "input.json").write_text(json.dumps({"inputs": [{"name": name, "shape": sample.shape}]}))
    child(folder, RUN)
    arrays = np.load(folder / "values.npz")
    values = {
        tuple(json.loads(key)): Seen(kind, arrays[str(i)]) for i, (key, kind) in enumerate(json.loads((folder / "keys.json").read_text()))
    }
    return Network(folder, values, name, samples)  # type: ignore[arg-type]


def scale_of(method: str, samples: Sequence[Array], **options: Any) -> np.float32:
    found = observer(method, **options)()
    for number in range(found.passes):
        if number:
            found.next_pass()
        for values in samples:
            found.update(values)
    assert isinstance(found, OfMnn)
    return found.scale


@pytest.mark.mnn
@pytest.mark.end_to_end
@pytest.mark.parametrize("clamp", [127, 100])
def test_kl(network: Network, clamp: int) -> None:
    dump = network.dump("kl", feature_quantize_method="KL", feature_clamp_value=clamp)
    searched = {index: (scale, seen) for index, (scale, seen) in dump.items() if seen.kind != "Pooling"}
    assert len(searched) >= 15 and any(seen.is_input for _, seen in searched.values())
    wrong = {
        index: (scale, got) for index, (scale, seen) in searched.items() if (got := scale_of("mnn-kl", seen.samples, clamp=clamp)) != scale
    }
    print(f"{len(searched) - len(wrong)} of {len(searched)} scales of MNN's KL are equal")
    assert not wrong


@pytest.mark.mnn
def test_admm(network: Network) -> None:
    """One sample counts, the last one. Channels that the CPU stores together are found by trying."""
    dump = network.dump("admm", feature_quantize_method="ADMM")
    equal: dict[int, list[bool]] = {4: [], 8: [], 16: []}
    for pack, found in equal.items():
        for scale, seen in dump.values():
            found.append(scale_of("mnn-admm", seen.samples, **({"of_input": True} if seen.is_input else {"pack": pack})) == scale)
    counts = {pack: int(sum(found)) for pack, found in equal.items()}
    print(f"of {len(dump)} scales of MNN's ADMM are equal, by channels stored together: {counts}")
    assert len(dump) >= 15 and max(counts.values()) == len(dump)
    assert counts[PACK] == len(dump) or sys.platform != "linux"


@pytest.mark.mnn
@pytest.mark.parametrize(("theirs", "ours"), [("MAX_ABS", "max-abs"), ("ADMM", "mnn-admm")])
def test_weights(network: Network, theirs: str, ours: str) -> None:
    network.dump("weights", feature_quantize_method="KL", weight_quantize_method=theirs)
    made = read_network(network.folder / "weights.mnn")
    layers = [layer.weights for layer in made.layers if layer.weights is not None]
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(network.folder / "model.onnx").graph.initializer]
    scales = [weight_quantization(array, ours).quantization.scale for array in arrays if array.ndim > 1]
    equal = [any(np.array_equal(layer.scales, own) for own in scales) for layer in layers]
    print(f"{sum(equal)} of {len(layers)} layers have MNN's {theirs} scales")
    assert len(layers) == 10 and all(equal)


def slow_threshold(counts: Array) -> int:
    """The search loop by loop, in float32, levels and bins as they come."""
    one = np.float32
    shares = np.full(2048, 1e-7, one)
    for _ in range(int(counts.max())):
        shares[counts > 0] += one(1)
        counts = np.maximum(counts - 1, 0)
    total = one(0)
    for share in shares:
        total += share
    shares = shares / total
    beyond = one(0)
    for share in shares[128:]:
        beyond += share
    best, threshold = one(10000), 128
    for end in range(128, 2048):
        kept = shares[:end].copy()
        kept[-1] += beyond
        beyond -= shares[end]
        if end % 97:  # some of them
            continue
        width, expanded = one(end) / one(128), np.zeros(end, one)
        for level in range(128):
            start, stop = one(level) * width, one(level) * width + width
            first, last = int(np.ceil(start)), int(np.floor(stop))
            parts = [(first - 1, one(first) - start)] if first > start else []
            parts += [(last, stop - one(last))] if last < stop else []
            parts += [(k, one(1)) for k in range(first, last)]
            held, wide = one(0), one(0)
            for k, part in parts:
                held += part * shares[k]
                wide += part
            for k, part in parts:
                expanded[k] += held / wide * part
        found = one(0)
        for p, q in zip(kept, expanded, strict=True):
            found += p * one(np.log(np.float64(p / q)))
        if found < best:
            best, threshold = found, end
    return threshold


@pytest.mark.formats
def test_the_search_is_that_of_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    from qconvert.calibration import mnn

    rng = np.random.default_rng(3)
    whole = mnn._divergences

    def some(shares: Array, part: int, beyond: Array) -> Array:
        return np.where(mnn._candidates(part)[0] % 97, np.inf, whole(shares, part, beyond))

    monkeypatch.setattr(mnn, "_divergences", some)
    for values in (np.abs(rng.normal(size=3000)), rng.exponential(size=400), rng.random(50)):
        counts = np.bincount((values / values.max() * 2047.9).astype(int), minlength=2048)
        assert kl_threshold(counts) == slow_threshold(counts)


@pytest.mark.formats
def test_sums_are_in_order() -> None:
    """numpy sums in pairs where it may; the sums of MNN's loops are one after another."""
    values = np.random.default_rng(0).random((2000, 3)).astype(np.float32)
    expected = np.zeros(3, np.float32)
    for row in values:
        expected += row
    np.testing.assert_array_equal(np.add.reduce(values, axis=0), expected)
    from qconvert.calibration.mnn import _sum_in_order

    assert _sum_in_order(values[:, 0].copy()) == expected[0]


@pytest.mark.formats
def test_nothing_to_see_is_no_scale() -> None:
    for method in ("mnn-kl", "mnn-admm"):
        assert scale_of(method, [np.zeros((1, 1, 20, 20), np.float32)]) == 0
    assert scale_of("mnn-kl", [np.full((1, 1, 20, 20), 1e-5, np.float32)]) == 0
