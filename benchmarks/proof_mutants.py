"""Results with one thing changed, and whether a proof (`qconvert check --prove`) still calls them equal. Nothing is run for that.

A change is one of a written file: of a constant, an attribute or a node of an .onnx file, of a tensor, an option or an operator of a
.tflite file, of the graph of a .pt2 file. A mutant is found if less is proved of it than of the sound result: an operator that was equal
for all inputs is not any more, or an output, a state or an operator is no longer the source's. Of each other one it has to be shown why:

- it is read as the same graph, or is equal for a reason that explain() knows;
- no operator that was changed was proved equal before;
- otherwise it is wrongly called equal, also if one of 20 runs at random, at the ends of ranges and with all codes gives another output.

    python benchmarks/proof_mutants.py --mutants 2000 --markdown docs/measured/faults.md --json build/proof_mutants.json

Sources are the small .tflite, .onnx and PyTorch files of fixtures/, random graphs (tests/random_graphs.py), and examples of all kinds of
operators (conformance/examples.py), in random order. A mutant is unseen if the outputs of the result's runtime are those of the sound
result for RUNS random inputs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import changed_onnx
import changed_tflite
import numpy as np
import onnx
from changed_numbers import Change, pick
from mutation_score import mutants as graph_mutants
from page import Section, publish

from qconvert import QConvertError, convert, load, save
from qconvert.checking.file_in_runtime import Side, side_of, sides_of
from qconvert.checking.proof.classes import EQUAL_CLASSES, Proof, Proved
from qconvert.checking.proof.proving import prove_sides
from qconvert.checking.same_codes import is_storage
from qconvert.conformance.examples import make_graph, types_of
from qconvert.data import random_inputs
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.tflite import schema
from qconvert.graph import Array, Graph, Op, integer_range
from qconvert.graph.activations import clip_range
from qconvert.kernels import KERNELS
from qconvert.kernels.kernel import activated_range
from qconvert.operators import KINDS, kind_of
from qconvert.rules.differences import diff

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from random_graphs import random_graph

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
#: Largest source, in bytes.
LARGEST = 400_000
#: Mutants of one source and result.
MOST = 14
RUNS = 3
#: Random graphs.
GRAPHS = 200
_COMMUTES = ("Add", "Mul", "Max", "Min", "SquaredDifference", "Equal", "NotEqual", "And", "Or", "Xor", "LogicalAnd", "LogicalOr")


@dataclass(frozen=True, slots=True)
class Case:
    """A source and how it is converted."""

    name: str
    source: Path
    suffix: str
    options: Mapping[str, Any] = field(default_factory=dict)
    graph: Graph | None = None


@dataclass(frozen=True, slots=True)
class Mutant:
    """What became of one.

    Attributes:
        kind, change: of the change, and in words.
        end: "found", "refused" by the reader, "same graph", "equal", "not proved before" or "wrong".
        unseen: whether random inputs do not show it; None where no runtime takes it.
        words: why it is equal; what is proved of one that is wrongly called equal.
    """

    case: str
    format: str
    kind: str
    change: str
    end: str
    unseen: bool | None = None
    words: str = ""


#: Format -> kind of change -> what makes it; mutation_score.mutants() draws the kind for the graph of a program of PyTorch.
CHANGES: Mapping[str, Mapping[str, Change]] = {"onnx": changed_onnx.CHANGES, "tflite": changed_tflite.CHANGES}


def mutate(case: Case, sound: Path, path: Path, kind: str, rng: np.random.Generator) -> tuple[str, str]:
    """Writes the sound result with one change of a kind, or of one that is drawn; returns the kind, and what the change is, or ""."""
    if case.suffix == "onnx":
        model = onnx.load(sound)
        if words := changed_onnx.CHANGES[kind](model, rng):
            path.write_bytes(model.SerializeToString())
        return kind, words
    if case.suffix == "tflite":
        tables = unpack_view(schema.root(sound.read_bytes()))
        if words := changed_tflite.CHANGES[kind](tables, rng):
            path.write_bytes(pack_model(tables))
        return kind, words
    found = next(graph_mutants(load(sound), load(case.source), rng))
    save(found.graph, path, force=True)
    return found.kind, found.change


class Judge:
    """Judges mutants of one case."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.sound, self.path = case, folder / f"sound.{case.suffix}", folder / f"mutant.{case.suffix}"
        if case.graph is not None:
            convert(case.graph, case.source, force=True)
        convert(case.source, self.sound, force=True, **case.options)
        self.read = {key: value for key, value in case.options.items() if key == "input_shape"}
        self.sides, _ = sides_of(case.source, self.sound, (), self.read)
        self.proof = prove_sides(self.sides)
        self.is_useful = bool(_count_equal(self.proof))
        self.feeds = random_inputs(self.sides[1].graph, RUNS, 0)

    def judge(self, kind: str, rng: np.random.Generator) -> Mutant | None:
        """What becomes of one mutant; None where the change finds nothing."""
        try:
            kind, change = mutate(self.case, self.sound, self.path, kind, rng)
        except (QConvertError, KeyError, ValueError, AttributeError, StopIteration):
            return None
        if not change:
            return None
        made = partial(Mutant, self.case.name, self.case.suffix, kind, change)
        try:
            side = side_of(self.path, "", (), {})
            found = prove_sides((self.sides[0], side))
        except QConvertError as error:
            return made("refused", None, error.sentence)
        unseen = self.is_same(side)
        if is_found(self.proof, found):
            return made("found", unseen)
        lines = diff(self.sides[1].graph, side.graph)
        if not lines:
            return made("same graph", unseen)
        touched = find_touched(side.graph, " ".join(lines), found)
        is_untraced = not touched and any(repr(name) in text for name in side.graph.outputs for text in self.proof.problems)
        if is_untraced or any(item.class_ not in EQUAL_CLASSES for item in touched) or "function '" in lines[0]:
            return made("not proved before", unseen)
        reason = explain(self.sides[1].graph, side.graph, lines, touched)
        if reason and unseen is not False and self.is_same(side, list_extremes(self.sides[1].graph)) is not False:
            return made("equal", unseen, reason)
        return made("wrong", unseen, f"{found.sentence}: {lines[:3]}")

    def is_same(self, side: Side, feeds: Sequence[Mapping[str, Array]] = ()) -> bool | None:
        """Whether a mutant has the sound result's outputs for inputs, by default random ones; None where its runtime does not take it."""
        try:
            wanted = self._run(self.sides[1], feeds) if feeds else self.outputs
            found = self._run(side, feeds or self.feeds)
        except Exception:  # whatever the runtime says of a file that no converter wrote
            return None
        pairs = [pair for one, other in zip(wanted, found, strict=True) for pair in zip(one, other, strict=False)]
        return all(a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)

    @cached_property
    def outputs(self) -> list[list[Array]]:
        """The sound result's for random inputs."""
        return self._run(self.sides[1], self.feeds)

    @staticmethod
    def _run(side: Side, feeds: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
        model = side.open()
        return [list(model.run(dict(zip(model.inputs, feed.values(), strict=True))).values()) for feed in feeds]


def list_extremes(graph: Graph) -> list[dict[str, Array]]:
    """Inputs at random, at the ends of their ranges, and with all codes in turn."""
    rng = np.random.default_rng(0)
    feeds = [dict(feed) for feed in random_inputs(graph, 12, 1)]
    for way in ("low", "high", "mixed", "low", "codes", "codes", "codes", "codes"):
        feed = dict(random_inputs(graph, 1, 0)[0])
        for name, value in feed.items():
            if value.dtype.kind in "iu" and graph[name].is_quantized:
                low, high = integer_range(graph[name].dtype)
                made = {
                    "low": rng.integers(low, low + 2, value.size),
                    "high": np.full(value.size, high),
                    "mixed": rng.choice([low, high], value.size),
                    "codes": low + (np.arange(value.size) + int(rng.integers(999))) * (1 if high < 256 else 257) % (high - low + 1),
                }[way]
                feed[name] = made.reshape(value.shape).astype(value.dtype)
        feeds.append(feed)
    return feeds


def find_touched(graph: Graph, words: str, proof: Proof) -> list[Proved]:
    """What is proved of the operators that read or write a tensor that `words` name, or of the next ones after these."""
    told, readers = {item.output: item for item in proof.operators}, graph.consumers()
    waiting = [name for op in graph.ops if any(repr(item) in words for item in (*op.inputs, *op.outputs) if item) for name in op.outputs]
    seen, found = set[str](), list[Proved]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in told:
            found.append(told[name])
        else:
            waiting += [output for op in readers.get(name, []) for output in op.outputs]
    return found


def explain(sound: Graph, graph: Graph, lines: Sequence[str], touched: Sequence[Proved]) -> str:
    """Why a mutant is equal to the sound result, in words; "" if that is not known.

    Args:
        sound, graph: the graphs of both files.
        lines: what differs.
        touched: what is proved of the operators that were changed.
    """

    def find_both(op: Op) -> list[tuple[Graph, Op]]:
        return [(each, item) for each in (sound, graph) for item in each.ops if item.outputs == op.outputs]

    if not touched:
        return "a tensor that nothing reads"
    named = {name for name in (*graph.tensors, *sound.tensors) if repr(name) in lines[0].partition(": ")[0]}
    is_tensor = lines[0].startswith("tensor")
    changed = [
        op
        for each in (graph, sound)
        for op in each.ops
        if op.outputs and not named.isdisjoint((*op.outputs, *(op.inputs if is_tensor else ())))
    ]
    if changed and all(op.kind in _COMMUTES and len(op.inputs) == 2 for op in changed) and len(lines) == 1 and "inputs" in lines[0]:
        return "operands in another order"
    if (
        is_tensor
        and "scale" in lines[0].partition(": ")[2]
        and all(kind_of(op).sums_products and named == {*op.inputs[2:3]} for op in changed)
    ):
        return "the scale of a bias, for which kernels take that of their products"
    if changed and all(kind_of(op).rule in ("move", "relabel", "plain") for op in changed):
        return "data movement of the same elements"
    if changed and all(any(op in each.ops and is_storage(each, op) for each in (sound, graph)) for op in changed):
        return "the other type that stores the same integers"
    for op in (op for op in changed if op in graph.ops):
        result = graph[op.outputs[0]]
        if result.per_tensor is None:
            continue
        ranges = [activated_range(*each) for each in find_both(op)]
        bounds = clip_bounds(graph, op)
        if ("activation" in lines[0] and len(set(ranges)) == 1) or (bounds and clip_range(result, bounds) == integer_range(result.dtype)):
            return "a limit that the type has"
    if any(word in item.method for item in touched for word in ("codes", "pairs", "sums")):
        return "compared on all codes, pairs or sums"
    axes = [{int(op["axis"]) % (each[op.inputs[0]].rank or 1) for each, op in find_both(op) if "axis" in op.attributes} for op in changed]
    if "axis" in lines[0] and all(len(found) == 1 for found in axes):
        return "the same axis, counted from the other end"
    read = [op for op in graph.ops if any(repr(name) in line for line in lines for name in op.outputs)]
    return "an order that an offset keeps" if read and all(kind_of(op).rule == "index" for op in read) else ""


def clip_bounds(graph: Graph, op: Op) -> tuple[float | None, float | None] | None:
    """The bounds of an operator that clips, as float values; None of others."""
    if op.kind == "Relu":
        return 0.0, None
    if op.kind != "Clip":
        return None
    low, high, *_ = (*(graph.constant(name) if name else None for name in op.inputs[1:]), None, None)
    return None if low is None else float(low), None if high is None else float(high)


def _count_equal(proof: Proof) -> Counter[str]:
    return Counter(item.operator for item in proof.operators if item.class_ in EQUAL_CLASSES)


def is_found(sound: Proof, mutant: Proof) -> bool:
    """Whether less is proved of a mutant than of the sound result."""
    if sound.claim:
        return not mutant.claim or (sound.equal_for_all_inputs and not mutant.equal_for_all_inputs)
    unequal = [Counter(item.class_ in EQUAL_CLASSES for item in proof.operators)[False] for proof in (sound, mutant)]
    return bool(_count_equal(sound) - _count_equal(mutant)) or unequal[1] > unequal[0] or any(
        len(b) > len(a) for a, b in ((sound.problems, mutant.problems), (sound.lost, mutant.lost), (sound.faults, mutant.faults))
    )  # fmt: skip


def list_cases(folder: Path, rng: np.random.Generator, seed: int, match: str) -> list[Case]:
    """Sources whose name holds a text, with what they are converted to, in random order."""
    cases = []
    for path in _find_small(match, "*.tflite"):
        cases += [Case(path.name, path, "onnx"), Case(path.name, path, "onnx", {"form": "qoperator"}), Case(path.name, path, "tflite")]
    for path in _find_small(match, "onnx/*.onnx"):
        cases += [Case(path.name, path, "tflite"), Case(path.name, path, "onnx")]
    for path in _find_small(match, "torch/*/*.pt", "torch/*/*.pt2"):
        cases += [Case(f"{path.parent.name}/{path.name}", path, suffix) for suffix in ("tflite", "onnx")]
    for path in _find_small(match, "tflm_seanet_conv_int16x8.tflite", "torch/classifier/eager_fbgemm_traced.pt"):
        cases.append(Case(path.name, path, "pt2"))
    for name in (f"random {number}" for number in range(seed, seed + GRAPHS)):
        if match in name:
            cases += _write_ways(random_graph(int(name.split()[1])), name, folder)
    for name in (f"{kind} {dtype}" for kind in KINDS for dtype in types_of(KINDS[kind])):
        layout = pick(("channels_first", "channels_last"), rng)
        try:
            graph = make_graph(*name.split(), rng, KERNELS["litert:default"], layout) if match in name else None
        except QConvertError:  # it has no example
            continue
        cases += [] if graph is None else _write_ways(graph, name, folder)
    return [cases[place] for place in rng.permutation(len(cases))]


def _find_small(match: str, *patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in sorted(FIXTURES.glob(pattern)) if match in str(path)]
    return [path for path in found if path.stat().st_size <= LARGEST and not path.name.startswith("refused")]


def _write_ways(graph: Graph, name: str, folder: Path) -> list[Case]:
    """A graph as a file of each format, converted to each; as a program of PyTorch, which takes seconds to export, one of ten."""
    given = ("tflite", "onnx", *(["pt2"] if zlib.crc32(name.encode()) % 10 == 0 else []))
    path = folder / name.replace(" ", "_")
    return [Case(f"{name}, {one}", path.with_suffix(f".{one}"), suffix, graph=graph) for one in given for suffix in ("onnx", "tflite")]


def find_mutants(wanted: int, seed: int, match: str = "", seconds: float = np.inf) -> Iterator[Mutant]:
    """Mutants until so many are found, the time is over, or all sources are used; prints those that are wrongly called equal."""
    rng, left, end = np.random.default_rng(seed), wanted, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        for case in list_cases(Path(name), rng, seed, match):
            if left <= 0 or time.monotonic() > end:
                return
            try:
                judge = Judge(case, Path(name))
            except QConvertError:  # no target takes it
                continue
            count = 0
            for kind in rng.permutation(list(CHANGES.get(case.suffix, [""] * MOST))).tolist():
                mutant = judge.judge(kind, rng) if judge.is_useful and count < MOST else None
                if mutant is None:
                    continue
                count += mutant.end != "refused"
                left -= mutant.end == "found"
                if mutant.end == "wrong":
                    print(f"{mutant.case} as {mutant.format}: {mutant.kind}: {mutant.change}: {mutant.words}", flush=True)
                yield mutant


def list_mutants(*given: Any) -> list[Mutant]:
    """What find_mutants() gives, for another process."""
    return list(find_mutants(*given))


def make_table(found: Sequence[Mutant]) -> Section:
    """The mutants of each format, and by kind of change those of all."""
    ends = ("found", "refused", "same graph", "equal", "not proved before", "wrong")
    groups = {f".{name} files": [item for item in found if item.format == name] for name in ("onnx", "tflite", "pt2")}
    groups |= {kind: [item for item in found if item.kind == kind] for kind in sorted({item.kind for item in found})}
    lines = []
    for title, items in ({"all": list(found)} | groups).items():
        counts = Counter(item.end for item in items)
        unseen = sum(item.end == "found" and item.unseen is True for item in items)
        lines.append([title, str(counts["found"]), str(unseen), *(str(counts[end]) for end in ends[1:])])
    reasons = Counter(item.words for item in found if item.end == "equal")
    files = {(item.case, item.format) for item in found}
    note = (
        f"{len(files)} pairs of files. Unseen: found, although {RUNS} random inputs give the sound result's outputs in its runtime. "
        f"Equal to the sound result: {', '.join(f'{count} {words}' for words, count in reasons.most_common())}."
    )
    header = ["changed", "found", "of these unseen", "refused by the reader", "read as the same graph", "equal", "not proved before"]
    return Section("Mutants of files, decided by proof alone", [*header, "wrongly called equal"], lines, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=2000, help="how many are to be found")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="only sources whose name holds this text")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each of which finds its part, with a seed of its own")
    parser.add_argument("--seconds", type=float, default=np.inf, help="when no further source is begun")
    parser.add_argument("--json", type=Path, help="the file in which all mutants are listed")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        parts = [
            pool.submit(list_mutants, given.mutants // given.jobs, given.seed + job, given.match, given.seconds)
            for job in range(given.jobs)
        ]
        found = [item for part in parts for item in part.result()]
    command = f"python benchmarks/proof_mutants.py --mutants {given.mutants} --seed {given.seed} --jobs {given.jobs}"
    publish(make_table(found), given.markdown, command, 200)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps([asdict(item) for item in found], indent=1))


if __name__ == "__main__":
    main()
