"""The mutation score of `qconvert check`: results with one constant, attribute or edge changed at random, and how many of them fail.

A mutant counts if the evaluator's output of it is another than that of the sound result, for the inputs that the check runs. It is caught
if the verdict is "not equal", and named if a problem names the operator that was changed: the one that computes the changed tensor, or
reads the changed constant, or, where the source has no such operator, what the source computes after it.

A result of qconvert says which conversion made it, so that the check makes it once more and sees whatever was altered since. With --bare
the mutants say nothing of it, as files of another version of qconvert do: operators, constants and edges have to show the change.

With --unreached the change is a Clip where no tensor of these runs reaches its bounds, although its range does: no output shows it.

    python benchmarks/mutation_score.py --mutants 2000 --json build/mutation_score.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert import check, convert, load, save
from qconvert.arithmetic import dequantize, quantize
from qconvert.checking.same_codes import has_byte_codes
from qconvert.checking.value_limits import limits_of
from qconvert.conversion import run_passes
from qconvert.conversion.comparing import load_pair
from qconvert.data import random_inputs
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Tensor, integer_range
from qconvert.graph.metadata import OPTIONS
from qconvert.operators import KINDS
from qconvert.plugins import target_named
from qconvert.rules.validation import validate

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
#: Model -> suffix of the result, and options of the conversion.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tiny_kws_dscnn_int8.tflite": ("onnx", {}),
    "tiny_ad_toycar_int8.tflite": ("onnx", {"form": "qoperator"}),
    "tiny_resnet_cifar10_int8.tflite": ("onnx", {}),
    "tiny_wakeword_int8.tflite": ("tflite", {}),
    "tflm_seanet_conv_int16x8.tflite": ("onnx", {}),
    "onnx/micro_kws_m_static_qdq.onnx": ("tflite", {}),
    "onnx/torch_pt2e_xnnpack_vision.onnx": ("tflite", {}),
    "onnx/torch_fx_fbgemm_attention.onnx": ("onnx", {"form": "qoperator"}),
    "onnx/modelopt_ptq_vision.onnx": ("tflite", {}),
    "onnx/brevitas_int8.onnx": ("onnx", {"form": "qoperator"}),
    "torch/vision/fx_fbgemm_frozen.pt": ("onnx", {"input_shape": "2,3,12,12"}),
    "torch/vision/eager_qnnpack_frozen.pt": ("tflite", {"input_shape": "2,3,12,12"}),
    "torch/classifier/pt2e_x86.pt2": ("onnx", {}),
    "torch/classifier/eager_fbgemm_traced.pt": ("pt2", {}),
    "torch/attention/fx_fbgemm_frozen.pt": ("onnx", {"input_shape": "2,5,16"}),
    "torch/small/pt2e_xnnpack_batch.pt2": ("tflite", {}),
    "torch/upward/fx_fbgemm_frozen.pt": ("tflite", {"input_shape": "2,3,5,6"}),
    "recurrent/lstm_float.tflite": ("onnx", {}),
    "recurrent/while_float.tflite": ("onnx", {}),
    "recurrent/nested_float.tflite": ("onnx", {}),
    "coral_lstm_mnist_int8.tflite": ("onnx", {}),
}
SAMPLES = 2
#: Clips of one tensor.
_CLIPS = 5
Way = Callable[[Graph, Graph, np.random.Generator], "Mutant | None"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed result.

    Attributes:
        graph: the result's with the change.
        change: in words.
        tensors: names of tensors of the source at which the change may be named.
        kind: of the change, where mutants() made it.
    """

    graph: Graph
    change: str
    tensors: frozenset[str]
    kind: str = ""


@dataclass(slots=True)
class Score:
    """What became of the mutants of one model.

    Attributes:
        equal: mutants that change no output of the evaluator.
        refused: those that the result's runtime does not take, so that the verdict is "inconclusive".
        caught, named: those that change one, and failed; and among these those whose operator was named.
        missed: changes that were not caught, with the verdict; unnamed: likewise not named, with the first problem.
    """

    model: str
    sound: str = ""
    equal: int = 0
    refused: int = 0
    caught: int = 0
    named: int = 0
    missed: list[str] = None  # type: ignore[assignment]
    unnamed: list[str] = None  # type: ignore[assignment]
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.missed, self.unnamed = [], []


def score(model: str, wanted: int, seed: int, folder: Path, bare: bool = False, unreached: bool = False) -> Score:
    """Makes `wanted` mutants of a model that change what the evaluator computes, and checks each; see --bare and --unreached."""
    suffix, options = MODELS[model]
    source, sound, path = FIXTURES / model, folder / f"sound.{suffix}", folder / f"mutant.{suffix}"
    convert(source, sound, force=True, **options)
    found = Score(model, check(source, sound, samples=SAMPLES).verdict)
    own, graph = load_pair(source, sound, {})
    if bare:
        graph = replace(graph, metadata={key: value for key, value in graph.metadata.items() if key != OPTIONS})
    feeds = [_fed(own, graph, feed) for feed in random_inputs(own, SAMPLES, 0)]
    expected = _run(graph, feeds)
    written, read = ({key: value for key, value in options.items() if key == name} for name in ("form", "input_shape"))
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    for mutant in clips(graph, own, feeds, rng) if unreached else mutants(graph, own, rng):
        if found.caught + len(found.missed) >= wanted or found.equal > 20 * wanted:
            break
        try:
            validate(mutant.graph)
            save(_carried(mutant.graph, suffix), path, force=True, **written)
            again = load(path)
            got = _run(again, feeds)
        except (QConvertError, KeyError):
            continue  # no model
        if all(_same(a, b) for a, b in zip(expected, got, strict=True)) != unreached:
            found.equal += 1
            continue
        try:
            report = check(source, path, samples=SAMPLES, **read)
        except QConvertError:
            found.refused += 1
            continue
        if report.runs == 0:
            found.refused += 1  # no runtime takes it
            continue
        if report.verdict != "not equal":
            found.missed.append(f"{mutant.change}: {report.verdict} {list(report.unjudged)[:1]}")
            continue
        found.caught += 1
        operators = {op.source for op in own.ops if op.source and not mutant.tensors.isdisjoint(op.outputs)}
        words = [*map(repr, mutant.tensors), *(f"{name} (" for name in operators)]
        if any(word in text for word in words for text in report.problems):
            found.named += 1
        else:
            found.unnamed.append(f"{mutant.change}, of {sorted(mutant.tensors)}: {report.problems[0]}")
    found.seconds = time.perf_counter() - started
    return found


def _carried(graph: Graph, suffix: str) -> Graph:
    """States as inputs and outputs, where the format has no variables."""
    return run_passes(graph, ("states_to_io",), target_named("generic"))[0] if graph.states and suffix == "onnx" else graph


def _run(graph: Graph, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """The outputs of each run; states live from one to the next."""
    states: dict[str, Array] = {}
    return [evaluate(graph, feed, states) for feed in feeds]


def _fed(own: Graph, graph: Graph, feed: Mapping[str, Array]) -> dict[str, Array]:
    """The source's stored inputs as the result stores them."""
    fed = {}
    for name, other in zip(own.inputs, graph.inputs, strict=True):
        a, b, value = own[name], graph[other], feed[name]
        if a.quantization is not None and b.quantization is not None and a.dtype != b.dtype:
            value = quantize(dequantize(value, a.quantization), b.quantization, b.dtype)
        fed[other] = value
    return fed


def _same(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    """Whether outputs are equal; floats within a few roundings of the largest."""
    return len(a) == len(b) and all(_equal(left, right) for left, right in zip(a.values(), b.values(), strict=True))


def _equal(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype.kind != "f":
        return a.shape == b.shape and np.array_equal(a, b)
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-5 * float(np.abs(a).max(initial=0)), equal_nan=True))


def mutants(graph: Graph, source: Graph, rng: np.random.Generator) -> Iterator[Mutant]:
    """Endless random changes of a graph, one each; many are no valid model.

    Args:
        graph: the sound result.
        source: what it was made of.
        rng: the random numbers.
    """
    ways = (_value, _value, _value, _scale, _zero_point, _attribute, _attribute, _edge, _edge, _swapped, _bypassed)
    while True:
        way = ways[rng.integers(len(ways))]
        if graph.states and rng.integers(4) == 0:
            way = (_first_value, _other_state)[rng.integers(2)]
        if graph.functions and way in _WITHIN and rng.integers(2):
            mutant = _in_function(graph, source, rng, way)
        else:
            mutant = way(graph, source, rng)
        if mutant is not None:
            yield replace(mutant, kind=_NAMES[way])


def clips(graph: Graph, source: Graph, feeds: Sequence[Mapping[str, Array]], rng: np.random.Generator) -> Iterator[Mutant]:
    """For each tensor of bytes, in random order, several Clips after it whose bounds it does not reach.

    Args:
        graph, source, rng: as of mutants().
        feeds: the runs in which they are not reached.
    """
    names = [op.outputs[0] for op in graph.ops if len(op.outputs) == 1 and has_byte_codes(graph[op.outputs[0]])]
    if graph.states or not names:
        return
    ran = _run(replace(graph, outputs=tuple(dict.fromkeys((*graph.outputs, *names)))), feeds)
    writers = graph.producers()
    for name in (name for _ in range(_CLIPS) for name in rng.permutation(names).tolist()):
        tensor, values = graph[name], np.concatenate([found[name].reshape(-1) for found in ran])
        quantization = tensor.quantization
        assert quantization is not None
        scale, point, limits = quantization.step, quantization.point, integer_range(tensor.dtype)
        can_be = np.clip(np.rint(np.array(limits_of(graph, writers, name)) / scale) + point, *limits).astype(int)
        lows, highs = (range(can_be[0] + 1, values.min() + 1), range(values.max(), can_be[1]))
        ends = [(low, limits[1]) for low in lows] + [(limits[0], high) for high in highs]
        if not ends:
            continue
        low, high = _pick(ends, rng)
        bounds = [
            (end - point) * scale if end != own else np.copysign(np.inf, end - 0.5) for end, own in zip((low, high), limits, strict=True)
        ]
        constants = [Tensor(f"{name}/{word}", "float32", (), np.array(value, np.float32)) for word, value in zip("<>", bounds, strict=True)]
        new = f"{name}/clipped"

        def read(names: tuple[str, ...], name: str = name, new: str = new) -> tuple[str, ...]:
            return tuple(new if item == name else item for item in names)

        ops = [replace(op, inputs=read(op.inputs)) for op in graph.ops]
        place = next(place for place, op in enumerate(ops) if name in op.outputs) + 1
        ops.insert(place, Op("Clip", (name, *(item.name for item in constants)), (new,)))
        changed = graph.evolve(ops=ops, tensors=[replace(tensor, name=new), *constants], outputs=read(graph.outputs))
        yield Mutant(
            changed,
            f"a Clip of {name!r} to {low}..{high}",
            places_in_source(graph, source, [name, *(out for op in ops if new in op.inputs for out in op.outputs)]),
        )


def _pick(items: list[Any], rng: np.random.Generator) -> Any:
    return items[rng.integers(len(items))] if items else None


def _value(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    """One element of a constant, or all of them by one place."""
    tensor = _pick([item for item in graph.constants() if item.data is not None and item.data.size], rng)
    if tensor is None:
        return None
    data = tensor.data.copy().reshape(-1)
    place, way = int(rng.integers(data.size)), int(rng.integers(4))
    if way == 0 and data.size > 1:
        data, said = np.roll(data, 1), "rolled"
    elif data.dtype.kind == "f":
        data[place] = data[place] * 1.5 + 0.1
        said = f"element {place} is {data[place]:g}"
    elif data.dtype.kind in "iu":
        bits = 8 * data.dtype.itemsize - 1 if data.dtype.itemsize < 4 else 12
        data[place] ^= data.dtype.type(1 << int(rng.integers(bits)))
        said = f"element {place} is {data[place]}"
    else:
        return None
    return _with_tensor(graph, source, replace(tensor, data=data.reshape(tensor.data.shape)), f"constant {tensor.name!r}: {said}")


def _scale(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    tensor = _pick([item for item in graph.tensors.values() if item.quantization is not None], rng)
    if tensor is None:
        return None
    scale = tensor.quantization.scale.copy()
    scale.reshape(-1)[rng.integers(scale.size)] *= np.float32(rng.choice([0.5, 0.98, 1.02, 2.0]))
    changed = replace(tensor, quantization=replace(tensor.quantization, scale=scale))
    return _with_tensor(graph, source, changed, f"a scale of {tensor.name!r}")


def _zero_point(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    tensor = _pick([item for item in graph.tensors.values() if item.quantization is not None and item.dtype in ("int8", "uint8")], rng)
    if tensor is None:
        return None
    low, high = integer_range(tensor.dtype)
    zero_point = np.clip(tensor.quantization.zero_point + int(rng.choice([-5, -1, 1, 5])), low, high)
    changed = replace(tensor, quantization=replace(tensor.quantization, zero_point=zero_point))
    return _with_tensor(graph, source, changed, f"the zero point of {tensor.name!r}")


def _attribute(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    op = _pick([op for op in graph.ops if KINDS[op.kind].attributes], rng)
    if op is None:
        return None
    name = _pick(sorted(KINDS[op.kind].attributes), rng)
    try:
        old = op[name]
    except KeyError:
        return None
    new: Any = old
    choices = KINDS[op.kind].attributes[name].choices
    if choices:
        new = _pick([item for item in choices if item != old], rng)
    elif isinstance(old, tuple) and old and isinstance(old[0], int):
        place, by = int(rng.integers(len(old))), int(rng.choice([-1, 1]))
        new = (*old[:place], old[place] + by, *old[place + 1 :])
    elif isinstance(old, float):
        new = old * 1.25 + 0.01
    elif isinstance(old, int):
        new = old + int(rng.choice([-1, 1]))
    if new is None or new == old:
        return None
    return _with_op(graph, source, op, op.with_attributes(**{name: new}), f"{op}: {name} is {new!r} instead of {old!r}")


def _edge(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    """An operator reads another tensor of the same type and shape."""
    op = _pick([op for op in graph.ops if op.inputs], rng)
    index = int(rng.integers(len(op.inputs)))
    if not op.inputs[index]:
        return None
    old = graph[op.inputs[index]]
    others = [item.name for item in graph.tensors.values() if _alike(item, old) and item.name not in _after(graph, op)]
    name = _pick(others, rng)
    if name is None:
        return None
    new = replace(op, inputs=(*op.inputs[:index], name, *op.inputs[index + 1 :]))
    return _with_op(graph, source, op, new, f"{op} reads {name!r} instead of {old.name!r}")


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.name != b.name and a.dtype == b.dtype and a.shape == b.shape and a.is_constant == b.is_constant


def _after(graph: Graph, op: Op) -> set[str]:
    """What is computed from an operator, so that it cannot read it."""
    found = set(op.outputs)
    for other in graph.ops:
        if found.intersection(other.inputs):
            found.update(other.outputs)
    return found


def _swapped(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    op = _pick([op for op in graph.ops if len(op.inputs) > 1], rng)
    if op is None or (len(graph.outputs) > 1 and rng.integers(8) == 0):
        outputs = graph.outputs[::-1]
        return Mutant(replace(graph, outputs=outputs), "outputs are in the other order", frozenset(outputs)) if len(outputs) > 1 else None
    return _with_op(graph, source, op, replace(op, inputs=(op.inputs[1], op.inputs[0], *op.inputs[2:])), f"{op}: inputs are swapped")


def _bypassed(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    """An operator is left out: its readers read its data."""
    op = _pick([op for op in graph.ops if len(op.outputs) == 1 and op.inputs and op.outputs[0] not in graph.outputs], rng)
    if op is None or not op.inputs[0] or graph[op.inputs[0]].shape != graph[op.outputs[0]].shape:
        return None
    gone, stays = op.outputs[0], op.inputs[0]
    ops = [replace(item, inputs=tuple(stays if name == gone else name for name in item.inputs)) for item in graph.ops if item is not op]
    readers = [name for item in graph.ops if gone in item.inputs for name in item.outputs]
    try:
        changed = graph.evolve(ops=ops)
    except QConvertError:
        return None
    return Mutant(changed, f"{op} is left out", places_in_source(graph, source, [gone, *readers]))


def _first_value(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    """An element of a state's first value."""
    state = _pick(sorted(graph.states.values(), key=lambda item: item.name), rng)
    if state.data is None or not state.data.size or state.data.dtype.kind not in "fiu":
        return None
    data = state.data.copy().reshape(-1)
    data[rng.integers(data.size)] += data.dtype.type(5)
    states = {**graph.states, state.name: replace(state, data=data.reshape(state.data.shape))}
    reads = [name for op in graph.ops if op.kind == "ReadState" and op["state"] == state.name for name in op.outputs]
    return Mutant(replace(graph, states=states), f"the first value of state {state.name!r}", places_in_source(graph, source, reads))


def _other_state(graph: Graph, source: Graph, rng: np.random.Generator) -> Mutant | None:
    """Two operators write, or read, each other's state."""
    kind = ("ReadState", "WriteState")[rng.integers(2)]
    one = _pick([op for op in graph.ops if op.kind == kind], rng)
    mine = graph.states[str(one["state"])]
    alike = [op for op in graph.ops if op.kind == kind and op is not one and _fits(mine, graph.states[str(op["state"])])]
    other = _pick(alike, rng)
    if other is None:
        return None
    turned = {id(one): one.with_attributes(state=other["state"]), id(other): other.with_attributes(state=one["state"])}
    names = [name for op in graph.ops if op.kind == "ReadState" and op["state"] in (one["state"], other["state"]) for name in op.outputs]
    ops = [turned.get(id(op), op) for op in graph.ops]
    return Mutant(graph.evolve(ops=ops), f"{one} and {other} exchange their states", places_in_source(graph, source, names))


def _fits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.quantization == b.quantization


def _in_function(graph: Graph, source: Graph, rng: np.random.Generator, way: Way) -> Mutant | None:
    """A change within a function; it may be named at any operator that runs functions."""
    name = _pick(sorted(graph.functions), rng)
    found = way(graph.functions[name], source, rng)
    if found is None:
        return None
    runs = [output for op in graph.ops if KINDS[op.kind].rule == "control" for output in op.outputs]
    functions = {**graph.functions, name: found.graph}
    return Mutant(replace(graph, functions=functions), f"in {name!r}: {found.change}", places_in_source(graph, source, runs))


def _with_op(graph: Graph, source: Graph, old: Op, new: Op, change: str) -> Mutant:
    ops = [new if item is old else item for item in graph.ops]
    return Mutant(graph.evolve(ops=ops), change, places_in_source(graph, source, old.outputs))


def _with_tensor(graph: Graph, source: Graph, tensor: Tensor, change: str) -> Mutant:
    writers = [op for op in graph.ops if tensor.name in op.outputs]
    readers = [op for op in graph.ops if tensor.name in op.inputs]
    names = [tensor.name, *(name for op in (*writers, *readers) for name in op.outputs)]
    return Mutant(graph.evolve(tensors=[tensor]), change, places_in_source(graph, source, names))


def places_in_source(graph: Graph, source: Graph, names: Any) -> frozenset[str]:
    """The tensors of the source at which a change of these is seen: themselves, or the next after them that the source has."""
    readers = graph.consumers()
    found: set[str] = set()
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in source.tensors:
            found.add(name)
        else:
            waiting += [output for op in readers.get(name, []) for output in op.outputs]
    return frozenset(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=2000, help="how many, over all models")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bare", action="store_true", help="the mutants do not say which conversion made them")
    parser.add_argument("--unreached", action="store_true", help="the mutants are Clips whose bounds no run reaches")
    given = parser.parse_args()
    scores = []
    with tempfile.TemporaryDirectory() as folder:
        for number, model in enumerate(given.models):
            found = score(model, given.mutants // len(given.models), given.seed + number, Path(folder), given.bare, given.unreached)
            scores.append(found)
            total = found.caught + len(found.missed)
            print(
                f"{model}: sound {found.sound}; {total} mutants, {found.caught} caught, {found.named} named, "
                f"{found.equal} without effect, {found.refused} refused by the runtime, {found.seconds:.0f} s", flush=True,
            )  # fmt: skip
            for line in found.missed[:20]:
                print("  missed:", line, flush=True)
            for line in found.unnamed[:20]:
                print("  not named:", line, flush=True)
    totals = Counter({"mutants": sum(item.caught + len(item.missed) for item in scores)})
    totals.update({"caught": sum(item.caught for item in scores), "named": sum(item.named for item in scores)})
    print(", ".join(f"{count} {what}" for what, count in totals.items()))
    if given.json:
        given.json.write_text(json.dumps([{name: getattr(item, name) for name in item.__slots__} for item in scores], indent=2))


#: Ways that change a function as they change a network.
_WITHIN = (_value, _scale, _zero_point, _attribute, _edge, _swapped, _bypassed)
#: Way -> the kind of its changes.
_NAMES: Mapping[Way, str] = {
    _value: "value of a constant",
    _scale: "scale",
    _zero_point: "zero point",
    _attribute: "attribute",
    _edge: "other input",
    _swapped: "inputs or outputs exchanged",
    _bypassed: "lost operator",
    _first_value: "first value of a state",
    _other_state: "states exchanged",
}


if __name__ == "__main__":
    main()
