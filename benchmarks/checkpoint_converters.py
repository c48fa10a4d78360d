"""Other converters of checkpoints with weights in blocks next to qconvert on the same files: what each keeps, its time and its memory.

    python benchmarks/checkpoint_converters.py --folder FOLDER [--markdown docs/measured/checkpoints.md]

--folder has checkpoints of whole networks, and graph.onnx, their float network. In the environment of this script are qconvert with its
plugin for GGUF, compressed-tensors, mlx-lm, mlx-cpu, onnxruntime, onnxruntime-genai, mobius-onnx, gguf and transformers; a converter that
is not there is an error. Each runs in a process of its own. A row of integers of the source is sought in the result, in which layers may be
joined, else what these are without their zero points; its zero points and its weights are then those that stand next to it. Weights are
those that the result's own tool computes: onnxruntime (MatMulNBits of the rows of an identity matrix, act-order included), mlx,
compressed-tensors, gguf.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import ROOT, measured, read_sections, table, write_sections

from qconvert.checkpoints.safetensors import find_checkpoint
from qconvert.checkpoints.source import CheckpointSource

Array = np.ndarray[Any, np.dtype[Any]]
TITLE = "Other converters"
_PACKAGES = ("compressed-tensors", "gguf", "mlx-lm", "mobius-onnx", "onnxruntime-genai", "onnxruntime")
_ABOUT = """Made by `python benchmarks/checkpoint_converters.py`: the same files, networks of two layers, so that imports are most of time
and memory. Kept: the share of rows of integers that the result has, and of their zero points; "as offsets" where it has those instead.
Weights: the share that the result's own tool computes otherwise than the source's, and by how much of the largest. Data: what its kernel
rounds them to. Seconds are those of processors. qconvert's ONNX is made with a float network, which the builders need not. All zero
points of the act-order checkpoint are 8; genai's builder writes them next to g_idx, where onnxruntime's kernel takes others for 8 too."""


@dataclass(frozen=True)
class Layer:
    """Weights in blocks of a result.

    Attributes:
        codes: [N, K], without a sign.
        zeros: [N, G]; None where it has offsets.
        values: float [N, K], as the result's tool computes them.
        data: what data are rounded to.
    """

    codes: Array
    zeros: Array | None
    values: Array
    data: str = "float"


def onnx_layers(path: Path) -> Iterator[Layer]:
    """MatMulNBits of an ONNX file."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    model = onnx.load(path)
    constants = {item.name: item for item in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node}
    for node in (node for node in model.graph.node if node.op_type == "MatMulNBits"):
        how = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        inputs, outputs, bits, level = how["K"], how["N"], how.get("bits", 4), how.get("accuracy_level", 0)
        arrays = [numpy_helper.to_array(constants[name]) if name else None for name in node.input[1:]]
        codes = _unpacked(arrays[0].reshape(outputs, -1), bits)[:, :inputs]
        groups = -(-inputs // how["block_size"])
        zeros = np.full((outputs, groups), 2 ** (bits - 1))
        if len(arrays) > 2 and arrays[2] is not None:
            zeros = _unpacked(arrays[2].reshape(outputs, -1), bits)[:, :groups]
        before = makers.get(node.input[0])
        order = np.arange(inputs)
        if before is not None and before.op_type == "Gather" and before.input[1] in constants:
            order = numpy_helper.to_array(constants[before.input[1]])
        kind = arrays[1].dtype
        alone = helper.make_graph(
            [helper.make_node("MatMulNBits", ["data", *node.input[1:]], ["y"], domain="com.microsoft", **how)],
            "alone",
            [helper.make_tensor_value_info("data", helper.np_dtype_to_tensor_dtype(kind), [inputs, inputs])],
            [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(kind), None)],
            [constants[name] for name in node.input[1:] if name],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        text = helper.make_model(alone, opset_imports=opsets, ir_version=10).SerializeToString()
        session = onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"])
        (product,) = session.run(None, {"data": np.eye(inputs, dtype=kind)[:, order]})
        in_order = np.empty_like(codes)
        in_order[:, order] = codes
        yield Layer(in_order, zeros, product.T, "int8" if level == 4 else "float")


def _unpacked(stored: Array, bits: int) -> Array:
    return np.stack([stored >> place & (2**bits - 1) for place in range(0, 8, bits)], axis=-1).reshape(len(stored), -1)


def mlx_layers(folder: Path) -> Iterator[Layer]:
    """Layers of MLX with the values that mlx computes."""
    import mlx.core as mx

    stated = json.loads((folder / "config.json").read_text())["quantization"]
    tensors: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= mx.load(str(file))
    source = CheckpointSource.of(find_checkpoint(folder))
    for name in source.layers:
        given = [tensors[f"{name}.{part}"] for part in ("weight", "scales", "biases")]
        values = mx.dequantize(*given, group_size=stated["group_size"], bits=stated["bits"])
        yield Layer(source.weight(name).codes, None, np.array(values.astype(mx.float32)))


def packed_layers(folder: Path) -> Iterator[Layer]:
    """Layers of compressed-tensors with the values that its unpack_from_int32() and dequantize() give."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    for name in CheckpointSource.of(find_checkpoint(folder)).layers:
        words, scale, shape, zeros = (tensors.get(f"{name}.weight_{part}") for part in ("packed", "scale", "shape", "zero_point"))
        codes = unpack_from_int32(words, 4, shape)
        if zeros is not None:
            zeros = unpack_from_int32(zeros, 4, scale.shape, packed_dim=0)
        args = QuantizationArgs(num_bits=4, strategy="group", group_size=codes.shape[1] // scale.shape[1], symmetric=zeros is None)
        values = dequantize(codes, scale.float(), zeros, args)
        yield Layer(codes.numpy() + 8, np.full(scale.shape, 8) if zeros is None else zeros.numpy() + 8, values.float().numpy())


def gguf_layers(path: Path) -> Iterator[Layer]:
    """Layers of Q4_0 and Q4_1 with the values that gguf computes."""
    from gguf import GGUFReader, dequantize

    for tensor in GGUFReader(path).tensors:
        name = tensor.tensor_type.name
        if name not in ("Q4_0", "Q4_1", "Q5_0"):
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        blocks = np.asarray(tensor.data).reshape(-1, {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22}[name])
        codes = np.concatenate([blocks[:, -16:] & 15, blocks[:, -16:] >> 4], axis=1)
        if name == "Q5_0":
            codes |= np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little") << 4
        zeros = None if name == "Q4_1" else np.full((len(values), 1), 16 if name == "Q5_0" else 8)
        yield Layer(codes.reshape(values.shape), zeros, values)


_READERS: dict[str, Callable[[Path], Iterator[Layer]]] = {
    "ONNX": onnx_layers, "MLX": mlx_layers, "compressed-tensors": packed_layers, "GGUF": gguf_layers,
}  # fmt: skip

_AWQ_CONVERTER = """
import sys
from compressed_tensors.entrypoints.convert import AutoAWQConverter, convert_checkpoint
convert_checkpoint(sys.argv[1], sys.argv[2], AutoAWQConverter.from_pretrained(sys.argv[1]))
"""
#: As a program does that has values only: each layer is dequantized, and quantized again.
_GGUF = """
import sys
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from qconvert.checkpoints.safetensors import find_checkpoint
from qconvert.checkpoints.source import CheckpointSource
from pathlib import Path
source = CheckpointSource.of(find_checkpoint(Path(sys.argv[1])))
writer = GGUFWriter(sys.argv[2], "llama")
for name in source.layers:
    values = source.weight(name).floats(np.dtype(np.float32))
    writer.add_tensor(name, quantize(values, GGMLQuantizationType.Q4_1), raw_dtype=GGMLQuantizationType.Q4_1)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"""


def commands(source: Path, result: str, out: Path) -> dict[str, tuple[list[str], Path]]:
    """By converter: its command, and where its result lies."""
    python, given = sys.executable, str(source)
    qconvert = [python, "-m", "qconvert", "convert", "--quiet", given]
    if result == "ONNX":
        qconvert += [str(out / "q.onnx"), "--graph", str(source.parent / "graph.onnx"), "--form", "qoperator"]
        found = {
            "genai's builder": (
                [python, "-m", "onnxruntime_genai.models.builder", "-i", given, "-o", str(out / "g"), "-p", "int4", "-e", "cpu",
                 "-c", str(out / "cache")],
                out / "g" / "model.onnx",
            ),
            "mobius": ([python, "-m", "mobius", "build", "--config", given, str(out / "m")], out / "m" / "model.onnx"),
        }  # fmt: skip
        return {**found, "qconvert": (qconvert, out / "q.onnx")}
    if result == "MLX":
        converter = [python, "-m", "mlx_lm", "convert", "--hf-path", given, "--mlx-path", str(out / "mlx")]
        return {"mlx_lm": (converter, out / "mlx"), "qconvert": ([*qconvert, str(out / "q"), "--to", "mlx"], out / "q")}
    if result == "GGUF":
        template = str(source / "template.gguf")
        return {
            "gguf, of values": ([python, "-c", _GGUF, given, str(out / "g.gguf")], out / "g.gguf"),
            "qconvert": ([*qconvert, str(out / "q.gguf"), "--template", template], out / "q.gguf"),
        }
    return {
        "AutoAWQConverter": ([python, "-c", _AWQ_CONVERTER, given, str(out / "ct")], out / "ct"),
        "qconvert": ([*qconvert, str(out / "q"), "--to", result], out / "q"),
    }


def kept(source: CheckpointSource, layers: Iterator[Layer]) -> tuple[str, str, str, str]:
    """Integers, zero points, weights and data."""
    made = list(layers)
    rows = {row.tobytes(): (layer, at) for layer in made for at, row in enumerate(layer.codes.astype(np.uint8))}
    moved = {
        row.tobytes(): (layer, at) for layer in made if layer.zeros is not None for at, row in enumerate(_steps(layer.codes, layer.zeros))
    }
    sought, zeros, blocks, differing, weights, largest, most = 0, 0, 0, 0, 0, 0.0, 0.0
    found, together = 0, 0
    for name in source.layers:
        weight = source.weight(name)
        values = weight.floats(np.dtype(np.float32))
        assert weight.zero is not None
        for place, (row, steps) in enumerate(zip(weight.codes, _steps(weight.codes, weight.zero), strict=True)):
            sought += 1
            layer, at = rows.get(row.tobytes()) or moved.get(steps.tobytes(), (None, 0))
            if layer is None:
                continue
            found += 1
            blocks += weight.zero.shape[1]
            if row.tobytes() not in rows:
                together += 1
                zeros += weight.zero.shape[1]
            elif layer.zeros is not None:
                mine = np.broadcast_to(layer.zeros[at], (weight.zero.shape[1],)) if layer.zeros.shape[1] == 1 else layer.zeros[at]
                zeros += (
                    int(np.count_nonzero(np.repeat(weight.zero[place], len(mine) // weight.zero.shape[1]) == mine))
                    * len(weight.zero[place])
                    // len(mine)
                )
            gaps = np.abs(layer.values[at].astype(np.float64) - values[place])
            differing += int(np.count_nonzero(gaps))
            largest, most = max(largest, float(gaps.max())), max(most, float(np.abs(values[place]).max()))
            weights += len(gaps)
    if not found:
        return "none", "", "", ""
    some = made[0]
    changed = "equal" if not differing else f"{differing / weights:.1%} differ, by {largest / most:.1g}"
    integers = f"{_share(found, sought)}, moved with their zero points" if together else _share(found, sought)
    return integers, "as offsets" if some.zeros is None else _share(zeros, blocks), changed, some.data


def _steps(codes: Array, zeros: Array) -> Array:
    """Integers less the zero points of their blocks."""
    return codes.astype(np.int16) - np.repeat(zeros, -(-codes.shape[1] // zeros.shape[1]), axis=1)[:, : codes.shape[1]].astype(np.int16)


def _share(count: int, of: int) -> str:
    return "kept" if count == of else f"{count / of:.1%} kept" if count else "none"


def write_tokenizer(folder: Path, size: int) -> None:
    """A tokenizer, without which builders do not begin."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"<{place}>": place for place in range(size)}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")), eos_token="<2>", bos_token="<1>")
    made.save_pretrained(folder)


#: GGUF's names of tensors, and Hugging Face's.
_NAMES = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
_PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
}  # fmt: skip


def write_template(path: Path, source: CheckpointSource) -> None:
    """The network as float16 with its numbers and a tokenizer, as convert_hf_to_gguf.py writes it."""
    from gguf import GGUFWriter

    config = source.config.model
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(heads["attn_q"])
    writer.add_head_count_kv(heads["attn_k"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{place}>" for place in range(config["vocab_size"])])
    writer.add_token_scores([0.0] * config["vocab_size"])
    names = dict(_NAMES)
    for block in range(config["num_hidden_layers"]):
        names |= {f"blk.{block}.{part}": f"model.layers.{block}.{name}" for part, name in _PARTS.items()}
    for name, own in names.items():
        values = source.weight(own).floats(np.dtype(np.float32)) if own in source.layers else source.plain[f"{own}.weight"]
        if count := heads.get(name.rpartition(".")[2]):  # rows of a head in pairs
            values = values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


#: Conversions at once: seconds are those of processors.
_AT_ONCE = 5
#: Checkpoint, what its layers are, and results.
_CASES = (
    ("ar_auto_awq_W4A16_asym", "AWQ", ("compressed-tensors", "MLX", "ONNX", "GGUF")),
    ("ar_auto_gptq_W4A16", "GPTQ v1", ("ONNX", "GGUF")),
    ("gm_v2_asym", "GPTQ v2", ("ONNX", "MLX")),
    ("gm_desc4", "GPTQ, act-order", ("ONNX",)),
    ("ct_W4A16_ASYM", "compressed-tensors", ("ONNX",)),
)


def rows_of(folder: Path, title: str, result: str) -> list[tuple[str, ...]]:
    """Rows of all converters that make a result of a checkpoint."""
    rows: list[tuple[str, ...]] = []
    source = CheckpointSource.of(find_checkpoint(folder))
    with tempfile.TemporaryDirectory(dir=folder.parent) as out:
        for converter, (command, made) in commands(folder, result, Path(out)).items():
            head = f"{title}, {result}", converter
            try:
                _, seconds, memory = measured(command)
                rows.append((*head, *_found(source, result, made), f"{seconds:.1f}", f"{1000 * memory:.0f}"))
            except subprocess.CalledProcessError as error:
                rows.append((*head, f"refused: {_message(error.stderr)}", "", "", "", "", ""))
            print(*rows[-1], flush=True)
    return rows


def _found(source: CheckpointSource, result: str, made: Path) -> tuple[str, str, str, str]:
    try:
        return kept(source, _READERS[result](made))
    except Exception as error:  # whatever a tool says of what another wrote
        return f"the result's own tool refuses it: {' '.join(str(error).split())[:150]}", "", "", ""


def _message(said: str) -> str:
    """The first line in which a program says what is wrong: before a remedy, and of errors in errors the cause."""
    lines = [found[1] for line in said.splitlines() if (found := re.match(r"(?:error|[\w.]*(?:Error|Exception)): (.+)", line))]
    return (lines or said.splitlines()[-1:] or ["no message"])[0][:150].replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--markdown", type=Path, default=ROOT / "docs" / "measured" / "checkpoints.md")
    given = parser.parse_args()
    rows: list[tuple[str, ...]] = [("from, to", "converter", "integers", "zero points", "weights", "data", "seconds", "MB")]
    with tempfile.TemporaryDirectory() as parent, ThreadPoolExecutor(_AT_ONCE) as pool:
        place = Path(parent)
        shutil.copyfile(given.folder / "graph.onnx", place / "graph.onnx")
        jobs = []
        for name, title, results in _CASES:
            shutil.copytree(given.folder / name, place / name)
            config = json.loads((place / name / "config.json").read_text())
            write_tokenizer(place / name, config["vocab_size"])
            write_template(place / name / "template.gguf", CheckpointSource.of(find_checkpoint(place / name)))
            jobs += [(place / name, title, result) for result in results]
        for found in pool.map(lambda job: rows_of(*job), jobs):
            rows += found
    sections = read_sections(given.markdown)
    tools = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    sections[TITLE] = f"{_ABOUT} {tools}.\n\n{table(rows)}"
    write_sections(given.markdown, sections)


if __name__ == "__main__":
    main()
