"""Checkpoints with weights in blocks: GPTQ, AWQ and compressed-tensors, made by their tools, with the integers that these read."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from checkpoint_formulas import weights_of, write_checkpoint
from onnx import helper, numpy_helper
from refusals import refused

from qconvert import check, convert, load
from qconvert.errors import FileAccessError, InvalidModelError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.torch.states.reader import read_parameters
from qconvert.graph import Tensor

FIXTURES = Path(__file__).parents[3] / "fixtures" / "blocks"
LAYERS = ("model.layers.0.mlp.down_proj", "model.layers.0.self_attn.q_proj")
READ = (
    *("ar_auto_gptq_W4A16_asym", "gm_v2_asym", "gm_desc4", "ar_auto_awq_W4A16_asym", "ct_W4A16", "ct_W4A16_ASYM"),
    *("ct_NVFP4A16", "ct_MXFP4A16", "mo_INT4_AWQ"),
)
SIZES = {"model.layers.0.mlp.down_proj": (256, 512), "model.layers.0.self_attn.q_proj": (256, 256)}


def digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(np.asarray(values).astype(np.int8)).tobytes()).hexdigest()


@pytest.mark.parametrize("name", READ)
def test_integers_and_zero_points_are_those_that_the_tools_read(name: str) -> None:
    """expected.json: compressed-tensors 0.20.1, packing_utils of AutoAWQ 0.2.7, and AutoGPTQ's formula in torch."""
    found = read_parameters(FIXTURES / name / "model.safetensors", {})
    expected = json.loads((FIXTURES / "expected.json").read_text())
    for layer in LAYERS:
        weight, order = found.tensors[f"{layer}.weight"], found.orders.get(layer)
        assert weight.shape == SIZES[layer] and weight.data is not None and weight.quantization is not None
        data = np.asarray(weight.data).astype(np.int8)
        if order is not None:  # back in the network's order
            data[:, order] = data.copy()
        assert digest(data) == expected[f"{name}/{layer}"]["integers"]
        assert digest(weight.quantization.zero_point) == expected[f"{name}/{layer}"]["zero_points"]
    assert bool(found.orders) is (name == "gm_desc4")
    assert list(found.factors) == ([LAYERS[0]] if name == "mo_INT4_AWQ" else [])


def product(x: str, weight: str, y: str) -> list[Any]:
    """The nodes of a linear layer, whose weights are [N, K]."""
    return [helper.make_node("Transpose", [weight], [f"{y}/w"], perm=[1, 0]), helper.make_node("MatMul", [x, f"{y}/w"], [y])]


def save_network(
    folder: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: dict[str, Any], opset: int = 18
) -> Path:
    """A float network, float.onnx; inputs and outputs with their shapes."""
    ends = [[helper.make_tensor_value_info(name, 1, shape) for name, shape in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(data, name) for name, data in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), folder / "float.onnx")
    return folder / "float.onnx"


def session_of(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def network(path: Path) -> Path:
    """The float network of two linear layers, as PyTorch exports it: weights [N, K] after a Transpose, with a prefix of its own."""
    rng = np.random.default_rng(0)
    listed = list(enumerate(LAYERS))
    nodes = [node for place, layer in listed for node in product(f"x{place}", f"m.{layer}.weight", f"y{place}")]
    inputs, outputs = ({f"{end}{place}": [2, 3, SIZES[layer][side]] for place, layer in listed} for side, end in ((1, "x"), (0, "y")))
    weights = {f"m.{layer}.weight": rng.normal(size=SIZES[layer]).astype(np.float32) for layer in LAYERS}
    return save_network(path, nodes, inputs, outputs, weights)


def dequantized(weight: Tensor, order: Any) -> Any:
    """[N, K] in the network's order."""
    q = weight.quantization
    assert q is not None and weight.data is not None
    groups = np.arange(weight.data.shape[1]) // q.block_size
    values = (np.asarray(weight.data).astype(np.float32) - q.zero_point[:, groups].astype(np.float32)) * q.scale[:, groups]
    if order is not None:
        values[:, order] = values.copy()
    return values


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", READ)
def test_a_network_with_a_checkpoint_computes_with_its_weights(name: str, form: str, tmp_path: Path) -> None:
    file = FIXTURES / name / "model.safetensors"
    report = convert(file, tmp_path / "m.onnx", graph=network(tmp_path), form=form)
    assert report.kept_all and report.kept["quantized constants"] == 2
    found = read_parameters(file, {})
    nodes = [node.op_type for node in onnx.load(str(tmp_path / "m.onnx")).graph.node]
    assert nodes.count("MatMulNBits") == (2 if form == "qoperator" else 0)
    assert nodes.count("Gather") == (2 if name == "gm_desc4" else 0)
    rng = np.random.default_rng(1)
    session = session_of(tmp_path / "m.onnx")
    for place, layer in enumerate(LAYERS):
        x = rng.normal(size=(2, 3, SIZES[layer][1])).astype(np.float32)
        other = np.zeros((2, 3, SIZES[LAYERS[1 - place]][1]), np.float32)
        (y,) = session.run([f"y{place}"], {f"x{place}": x, f"x{1 - place}": other})
        wanted = (x * found.factors.get(layer, np.float32(1))) @ dequantized(found.tensors[f"{layer}.weight"], found.orders.get(layer)).T
        assert np.abs(y - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_layers_that_read_the_same_data_in_one_order_share_a_gather(tmp_path: Path) -> None:
    """Two layers of one order: the second is the first under another name."""
    folder = copied("gm_desc4", tmp_path)
    head, data = parts(folder)
    for key in [key for key in head if key.startswith(LAYERS[1])]:
        head[key.replace("q_proj", "k_proj")] = head[key]
    head = {key: value for key, value in head.items() if not key.startswith(LAYERS[0])}
    put_together(folder, head, data)
    rng = np.random.default_rng(0)
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk"]
    weights = {name: rng.normal(size=(256, 256)).astype(np.float32) for name in names}
    nodes = [node for place, name in enumerate(names) for node in product("x", name, f"y{place}")]
    outputs = {"y0": [2, 3, 256], "y1": [2, 3, 256]}
    found = load(folder / "model.safetensors", graph=save_network(tmp_path, nodes, {"x": [2, 3, 256]}, outputs, weights))
    assert [op.kind for op in found.ops].count("Gather") == 1
    x = rng.normal(size=(2, 3, 256)).astype(np.float32)
    first, second = evaluate(found, {"x": x}).values()
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("joined", "layers"),
    [("gate_up_proj", ("gate_proj", "up_proj")), ("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("lm_head", ("embed_out",))],
)
def test_a_layer_of_the_network_that_is_several_in_the_checkpoint(joined: str, layers: tuple[str, ...], tmp_path: Path) -> None:
    """Each part is a product of its own, with its own act-order; the results are joined."""
    folder = copied("gm_desc4", tmp_path)
    head, data = parts(folder)
    own = {key: entry for key, entry in head.items() if key.startswith(LAYERS[1])}
    put_together(folder, own | {key.replace("q_proj", f"mlp.{layer}"): entry for key, entry in own.items() for layer in layers}, data)
    sizes = {f"m.{LAYERS[1]}.weight": 256, f"m.{LAYERS[1].replace('q_proj', f'mlp.{joined}')}.weight": 256 * len(layers)}
    nodes = [node for place, name in enumerate(sizes) for node in product("x", name, f"y{place}")]
    outputs = {f"y{place}": [2, 3, size] for place, size in enumerate(sizes.values())}
    weights = {name: np.zeros((size, 256), np.float32) for name, size in sizes.items()}
    graph = save_network(tmp_path, nodes, {"x": [2, 3, 256]}, outputs, weights)
    x = np.random.default_rng(0).normal(size=(2, 3, 256)).astype(np.float32)
    one, several = evaluate(load(folder / "model.safetensors", graph=graph), {"x": x}).values()
    assert one.any()
    np.testing.assert_array_equal(several, np.concatenate([one] * len(layers), axis=2))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_data_are_rounded_by_the_scale_of_each_layer(dtype: str, tmp_path: Path) -> None:
    """Layers that share their data round them apart, and for nobody else; onnxruntime would make operators of FP8 that it then refuses."""
    rng, scales = np.random.default_rng(0), {"m.a": np.float32(0.05), "m.b": np.float32(0.1)}
    weights = {layer: rng.normal(size=(16, 32)).astype(ml_dtypes.float8_e4m3fn if dtype != "int8" else np.int8) for layer in scales}
    tensors: dict[str, Any] = {}
    for layer, scale in scales.items():
        tensors |= {f"{layer}.weight": weights[layer], f"{layer}.weight_scale": np.ones(1, np.float32), f"{layer}.input_scale": scale}
    how = {"num_bits": 8, "type": "int" if dtype == "int8" else "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    group = {"targets": ["Linear"], "weights": how, "input_activations": how}
    write_checkpoint(tmp_path, tensors, {"config_groups": {"a": group}})
    nodes = [helper.make_node("Gemm", ["x", f"{layer}.weight"], [f"{layer}.y"], transB=1) for layer in scales]
    nodes.append(helper.make_node("Relu", ["x"], ["r"]))
    outputs = {"m.a.y": [5, 16], "m.b.y": [5, 16], "r": [5, 32]}
    save_network(tmp_path, nodes, {"x": [5, 32]}, outputs, {f"{layer}.weight": np.zeros((16, 32), np.float32) for layer in scales}, 19)
    source = tmp_path / "model.safetensors"
    report = convert(source, tmp_path / "m.onnx", graph=tmp_path / "float.onnx", round_data=True)
    assert report.kept["quantized activations"] == 2
    x = (rng.normal(size=(5, 32)) * 20).astype(np.float32)
    *found, relu = session_of(tmp_path / "m.onnx").run(None, {"x": x})
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    for y, (layer, scale) in zip(found, scales.items(), strict=True):
        steps = x / scale
        stored = np.clip(np.rint(steps), -128, 127) if dtype == "int8" else np.clip(steps, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        wanted = stored.astype(np.float32) * scale @ weights[layer].astype(np.float32).T
        np.testing.assert_allclose(y, wanted, atol=1e-6 * np.abs(wanted).max())
    plain = convert(source, tmp_path / "plain.onnx", graph=tmp_path / "float.onnx")
    assert plain.kept["quantized activations"] == 0 and any("round_data" in str(change) for change in plain.changes)
    for name in ("m.onnx", "plain.onnx"):
        verdict = check(source, tmp_path / name, graph=tmp_path / "float.onnx", samples=2)
        assert verdict.verdict == "passed" and "torch:rebuilt" in verdict.kernels


def rounded_to_fp4(x: Any, scales: Any) -> Any:
    """Data rounded to FP4 with a scale for each block of 16, by the nearest of its values."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    steps = np.divide(
        np.abs(x).reshape(len(x), -1, 16).astype(np.float64),
        scales[..., None],
        where=scales[..., None] > 0,
        out=np.zeros((*scales.shape, 16)),
    )
    nearest = np.abs(np.minimum(steps, 6)[..., None] - values).argmin(-1)
    return (np.sign(x).reshape(steps.shape) * values[nearest] * scales[..., None]).reshape(x.shape)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("tool", ["compressed-tensors", "modelopt"])
def test_data_are_rounded_to_nvfp4(tool: str, tmp_path: Path) -> None:
    """Scales of blocks are E4M3 with a second level, which one tool divides by and the other multiplies by; a block of tiny data is 0."""
    rng, level = np.random.default_rng(0), np.float32(300.0 if tool == "compressed-tensors" else 0.0035)
    scales = rng.uniform(0.5, 2, (16, 4)).astype(ml_dtypes.float8_e4m3fn)
    codes = rng.integers(0, 256, (16, 32), np.uint8)
    tensors: dict[str, Any]
    if tool == "modelopt":
        tensors = {"weight": codes, "weight_scale": scales, "weight_scale_2": np.float32(0.5), "input_scale": level}
        stated: Any = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    else:
        second = {"weight_global_scale": np.array([2.0], np.float32), "input_global_scale": np.array([level])}
        tensors = {"weight_packed": codes, "weight_scale": scales, **second}
        how = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
        group = {"targets": ["Linear"], "weights": {**how, "dynamic": False}, "input_activations": {**how, "dynamic": "local"}}
        stated = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"a": group}}
    write_checkpoint(tmp_path, {f"m.a.{name}": tensor for name, tensor in tensors.items()}, stated)
    node = helper.make_node("Gemm", ["x", "m.a.weight"], ["m.a.y"], transB=1)
    save_network(tmp_path, [node], {"x": ["n", 64]}, {"m.a.y": ["n", 16]}, {"m.a.weight": np.zeros((16, 64), np.float32)}, 19)
    source = tmp_path / "model.safetensors"
    plain = convert(source, tmp_path / "plain.onnx", graph=tmp_path / "float.onnx")
    assert any("float4e2m1" in str(change) for change in plain.changes) and any("round_data" in str(change) for change in plain.changes)
    report = convert(source, tmp_path / "m.onnx", graph=tmp_path / "float.onnx", round_data=True)
    assert not any("stay float" in str(change) for change in report.changes)
    x = (rng.normal(size=(200, 64)) * 10.0 ** rng.uniform(-2, 1, (200, 1))).astype(np.float32)
    x[:3, :16], x[3] = [[0.0], [1e-9], [-1e-30]], 0.0
    x[4, :16] = np.arange(-8, 8) * np.float32(0.75)
    wanted_scales = np.abs(x).reshape(200, 4, 16).max(-1) / np.float32(6)
    wanted_scales = wanted_scales / level if tool == "modelopt" else wanted_scales * level
    stored = np.minimum(wanted_scales, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    data = rounded_to_fp4(x, stored / level if tool != "modelopt" else stored * level)
    weights = read_parameters(source, {}).tensors["m.a.weight"]
    assert weights.data is not None and weights.quantization is not None
    matrix = weights.data.astype(np.float64) * np.repeat(weights.quantization.scale, 16, axis=1)
    (found,) = session_of(tmp_path / "m.onnx").run(None, {"x": x})
    wanted = data @ matrix.T
    assert np.isfinite(found).all() and not found[3].any()
    assert (np.abs(found - wanted) <= 2e-6 * np.abs(wanted).max(1, keepdims=True)).all()
    verdict = check(source, tmp_path / "m.onnx", graph=tmp_path / "float.onnx", samples=2)
    assert verdict.verdict == "passed" and "torch:rebuilt" in verdict.kernels


def copied(name: str, path: Path) -> Path:
    shutil.copytree(FIXTURES / name, path / name)
    return path / name


def parts(folder: Path) -> tuple[dict[str, Any], bytes]:
    content = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    head.pop("__metadata__", None)
    return head, content[8 + length :]


def put_together(folder: Path, head: dict[str, Any], data: bytes, name: str = "model.safetensors") -> None:
    """Write the tensors of a header one after another, each from its place in `data`."""
    packed, entries = b"", {}
    for key, entry in head.items():
        first, last = entry["data_offsets"]
        entries[key] = {**entry, "data_offsets": [len(packed), len(packed) + last - first]}
        packed += data[first:last]
    text = json.dumps(entries).encode()
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text + packed)


def test_negative_scales_of_whole_rows(tmp_path: Path) -> None:
    """As auto-round makes them: one block for each output, which is no axis of scales then."""
    folder = copied("gm_v2_asym", tmp_path)
    head, data = parts(folder)
    first = head[f"{LAYERS[1]}.scales"]["data_offsets"][0]
    words = head[f"{LAYERS[1]}.qzeros"]["data_offsets"][0]
    head[f"{LAYERS[1]}.scales"] |= {"shape": [1, 256], "data_offsets": [first, first + 512]}
    head[f"{LAYERS[1]}.qzeros"] |= {"shape": [1, 32], "data_offsets": [words, words + 128]}
    head.pop(f"{LAYERS[1]}.g_idx", None)
    put_together(folder, {key: value for key, value in head.items() if LAYERS[1] in key}, data[: first + 1] + b"\xa0" + data[first + 2 :])
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["group_size"] = 256
    (folder / "config.json").write_text(json.dumps(config))
    weight = read_parameters(folder / "model.safetensors", {}).tensors[f"{LAYERS[1]}.weight"]
    assert weight.quantization is not None and weight.quantization.block_size == 256 and weight.quantization.scale.min() < 0


@pytest.mark.onnxruntime
def test_embeddings_tied_to_the_last_layer(tmp_path: Path) -> None:
    """The network's one matrix has the name of the last layer, which the checkpoint lacks; torch.onnx writes the module of each node."""
    folder = copied("ct_W4A16", tmp_path)
    head, data = parts(folder)
    table = np.random.default_rng(0).normal(size=(8, 256)).astype(np.float32)
    head["model.embed_tokens.weight"] = {"dtype": "F32", "shape": [8, 256], "data_offsets": [len(data), len(data) + table.nbytes]}
    put_together(folder, {key: value for key, value in head.items() if LAYERS[0] not in key}, data + table.tobytes())
    names = (f"m.{LAYERS[1]}.weight", "m.lm_head.weight")
    weights = [numpy_helper.from_array(np.ones((size, 256), np.float32), name) for size, name in zip((256, 8), names, strict=True)]
    embed = helper.make_node("Gather", [names[1], "ids"], ["e"])
    embed.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'm.model.embed_tokens', 'embedding']")
    nodes = [embed]
    for source, name, result in (("e", names[0], "y"), ("y", names[1], "logits")):
        nodes.append(helper.make_node("Transpose", [name], [f"{result}/w"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", [source, f"{result}/w"], [result]))
    ids, logits = helper.make_tensor_value_info("ids", 7, [1, 3]), helper.make_tensor_value_info("logits", 1, [1, 3, 8])
    graph = helper.make_graph(nodes, "g", [ids], [logits], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "float.onnx")
    convert(folder / "model.safetensors", tmp_path / "m.onnx", graph=tmp_path / "float.onnx", form="qoperator")
    (found,) = session_of(tmp_path / "m.onnx").run(None, {"ids": np.array([[1, 5, 7]])})
    weight = weights_of(folder)[LAYERS[1]]
    np.testing.assert_allclose(found[0], table[[1, 5, 7]] @ weight.T @ table.T, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_in_several_files(tmp_path: Path) -> None:
    folder = copied("gm_v2_asym", tmp_path)
    whole = read_parameters(folder / "model.safetensors", {})
    head, data = parts(folder)
    names = {layer: f"model-{place}-of-2.safetensors" for place, layer in enumerate(LAYERS)}
    for layer, name in names.items():
        put_together(folder, {key: value for key, value in head.items() if key.startswith(layer)}, data, name)
    index = {key: next(name for layer, name in names.items() if key.startswith(layer)) for key in head}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for name in names.values():
        found = read_parameters(folder / name, {})
        assert set(found.tensors) == set(whole.tensors)
        assert all(np.array_equal(tensor.data, whole.tensors[key].data) for key, tensor in found.tensors.items())
    (folder / names[LAYERS[0]]).rename(folder / "elsewhere")
    with refused(FileAccessError, "file-missing"):
        read_parameters(folder / names[LAYERS[1]], {})
    (folder / "elsewhere").rename(folder / names[LAYERS[0]])
    key = next(iter(index))
    for wrong, rule in (
        ({**index, key: "../secret.safetensors"}, "outside-folder"),
        ({**index, f"{key}.more": names[LAYERS[0]]}, "tensor-missing"),
    ):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": wrong}))
        with refused(InvalidModelError, rule):
            read_parameters(folder / names[LAYERS[1]], {})
    (folder / "model.safetensors.index.json").write_text("[1")
    with refused(InvalidModelError, "not-json"):
        read_parameters(folder / names[LAYERS[1]], {})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    put_together(folder, head, data, names[LAYERS[1]])
    with refused(InvalidModelError, "duplicate-name"):
        read_parameters(folder / names[LAYERS[1]], {})


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", ["mlx4", "bnb_nf4_plain", "bnb_int8", "ao_int4", "ao_float8"])
def test_weights_without_zero_points_are_computed_from_their_codes(name: str, form: str, tmp_path: Path) -> None:
    """MLX has an offset for each block, torchao's int4 one next to a zero point, nf4 and FP8 a table of values, bitsandbytes' int8 a second
    product: operators compute them."""
    layer = "model.layers.0.self_attn.q_proj"
    rng = np.random.default_rng(0)
    real = weights_of(FIXTURES / name)[layer]
    nodes, (rows, columns) = product("x", f"{layer}.weight", "y"), real.shape
    weights = {f"{layer}.weight": rng.normal(size=real.shape).astype(np.float32)}
    graph = save_network(tmp_path, nodes, {"x": [2, 3, columns]}, {"y": [2, 3, rows]}, weights)
    report = convert(FIXTURES / name, tmp_path / "m.onnx", graph=graph, form=form)
    assert report.kept_all and report.kept["integers in them"] == real.size
    types = {"bnb_int8": onnx.TensorProto.INT8, "ao_int4": onnx.TensorProto.INT4, "ao_float8": onnx.TensorProto.FLOAT8E4M3FN}
    dtype = types.get(name, onnx.TensorProto.UINT4)
    stored = [item for item in onnx.load(str(tmp_path / "m.onnx")).graph.initializer if item.data_type == dtype]
    assert [*real.shape] in [list(item.dims) for item in stored]  # the others are zero points
    x = rng.normal(size=(2, 3, 256)).astype(np.float32)
    session = session_of(tmp_path / "m.onnx")
    (y,) = session.run(None, {"x": x})
    wanted = x @ real.T
    assert np.abs(y - wanted).max() <= 2e-6 * np.abs(wanted).max()
    if name == "bnb_int8":  # bit for bit: sums of one product each
        columns = np.eye(256, dtype=np.float32)[:252].reshape(-1, 2, 3, 256)
        found = np.concatenate([session.run(None, {"x": item})[0].reshape(-1, 256) for item in columns])
        np.testing.assert_array_equal(found.T, real[:, :252])


#: Checkpoint with a byte for each weight -> the type of its weights in ONNX, the shape of their scales, the opset.
BYTES: dict[str, tuple[str, list[int], int]] = {
    "ct_FP8": ("FLOAT8E4M3FN", [], 19),
    "quark_fp8": ("FLOAT8E4M3FN", [], 19),
    "ct_FP8_BLOCK": ("FLOAT8E4M3FN", [256, 2], 21),
    "hf_fp8": ("FLOAT8E4M3FN", [256, 2], 21),
    "ct_MXFP8": ("FLOAT8E4M3FN", [128, 8], 21),
    "ct_W8A8": ("INT8", [128, 1], 17),
    "mo_W8A16": ("INT8", [128, 1], 17),
    "ct_W4AFP8": ("INT4", [128, 2], 21),
}


def linear(path: Path, name: str) -> tuple[str, Any, Path]:
    """The layer of a checkpoint, its float64 weights, and a float network of it alone."""
    ((layer, weight),) = weights_of(FIXTURES / name).items()
    rows, columns = weight.shape
    weights = {f"{layer}.weight": np.random.default_rng(0).normal(size=weight.shape).astype(np.float32)}
    return layer, weight, save_network(path, product("x", f"{layer}.weight", "y"), {"x": ["n", columns]}, {"y": ["n", rows]}, weights)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_stored_in_onnx_and_dequantized_to_the_last_bit(name: str, tmp_path: Path) -> None:
    """The products with a unit matrix are the weights: onnxruntime's kernels round none of them otherwise than float32 does."""
    _, weight, graph = linear(tmp_path, name)
    report = convert(FIXTURES / name, tmp_path / "m.onnx", graph=graph)
    assert report.kept_all and report.kept["integers in them"] == weight.size
    assert any("data of 1 layer stay float" in str(change) for change in report.changes) is (name != "mo_W8A16")
    model = onnx.load(str(tmp_path / "m.onnx"))
    kind, scales, opset = BYTES[name]
    stored = {
        onnx.TensorProto.DataType.Name(item.data_type): list(item.dims)
        for item in model.graph.initializer
        if tuple(item.dims) == weight.shape
    }
    assert stored == {kind: list(weight.shape)} and model.opset_import[0].version == opset
    assert scales in [list(item.dims) for item in model.graph.initializer if item.data_type == onnx.TensorProto.FLOAT]
    (found,) = session_of(tmp_path / "m.onnx").run(None, {"x": np.eye(weight.shape[1], dtype=np.float32)})
    np.testing.assert_array_equal(found.T, weight.astype(np.float32))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", ["ct_W8A8", "mo_W8A16"])
def test_rows_with_one_scale_are_blocks_of_matmulnbits(name: str, tmp_path: Path) -> None:
    _, weight, graph = linear(tmp_path, name)
    report = convert(FIXTURES / name, tmp_path / "m.onnx", graph=graph, form="qoperator")
    (node,) = (node for node in onnx.load(str(tmp_path / "m.onnx")).graph.node if node.op_type == "MatMulNBits")
    sizes = {item.name: item.i for item in node.attribute}
    assert report.kept_all and (sizes["bits"], sizes["block_size"], sizes["N"], sizes["K"]) == (8, 128, *weight.shape)
    (found,) = session_of(tmp_path / "m.onnx").run(None, {"x": np.eye(weight.shape[1], dtype=np.float32)})
    np.testing.assert_array_equal(found.T, weight.astype(np.float32))


@pytest.mark.onnxruntime
@pytest.mark.torch
@pytest.mark.parametrize("name", ["ct_FP8", "ct_FP8_BLOCK", "ct_W8A8"])
def test_a_check_runs_a_network_with_bytes(name: str, tmp_path: Path) -> None:
    _, _, graph = linear(tmp_path, name)
    convert(FIXTURES / name, tmp_path / "m.onnx", graph=graph)
    report = check(FIXTURES / name, tmp_path / "m.onnx", graph=graph)
    assert report.passed and "not judged in PyTorch" not in str(report)


def test_forms_that_are_not_covered_are_refused_by_their_names(tmp_path: Path) -> None:
    folder = copied("bnb_nf4_plain", tmp_path)
    head, data = parts(folder)
    put_together(folder, {key.replace(".weight.absmax", ".SCB"): value for key, value in head.items()}, data)  # without int8
    for more in ({"graph": network(tmp_path)}, {}):  # a network would not help
        with pytest.raises(UnsupportedError, match="bitsandbytes \\(int8\\)"):
            convert(folder, tmp_path / "m.onnx", **more)  # type: ignore[arg-type]
    assert not (tmp_path / "m.onnx").exists()
    for part, title in (("weight_scale_inv", "FP8"), ("W_q", "HQQ"), ("q_weight", "ExLlamaV2")):
        put_together(folder, {key.replace(".weight.absmax", f".{part}"): value for key, value in head.items()}, data)
        with pytest.raises(UnsupportedError, match=title):
            convert(folder, tmp_path / "out", result_format="awq")


@pytest.mark.parametrize("name", ["ct_NVFP4A16", "ct_MXFP4A16"])
def test_scales_of_fp4_are_halved_since_its_integers_are_doubled(name: str) -> None:
    """NVFP4: E4M3 divided by a float32 in float32; MXFP4: a power of two. Codes are 0 to 6 in steps of a half and more."""
    head, data = parts(FIXTURES / name)
    found = read_parameters(FIXTURES / name / "model.safetensors", {})

    def stored(key: str, dtype: str) -> Any:
        first, last = head[key]["data_offsets"]
        return np.frombuffer(data[first:last], dtype).reshape(head[key]["shape"])

    for layer in LAYERS:
        weight = found.tensors[f"{layer}.weight"]
        bits = stored(f"{layer}.weight_scale", "u1").astype(np.int32)
        if name == "ct_MXFP4A16":
            wanted = np.exp2(bits.astype(np.float64) - 127)
        else:  # E4M3: sign, exponent with bias 7, three bits
            exponent, mantissa = bits >> 3 & 15, bits & 7
            value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * np.exp2(exponent - 7.0))
            wanted = value.astype(np.float32) / stored(f"{layer}.weight_global_scale", "<f4")[0]
        assert weight.quantization is not None and weight.dtype == "int8"
        np.testing.assert_array_equal(weight.quantization.scale * 2, wanted.astype(np.float32))
        assert set(np.unique(np.asarray(weight.data))) <= {0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12}


def changed(folder: Path, **more: Any) -> None:
    """Change what config.json states."""
    stated = json.loads((folder / "config.json").read_text())
    stated["quantization_config"].update(more)
    (folder / "config.json").write_text(json.dumps(stated))


def test_what_is_not_stated_is_said(tmp_path: Path) -> None:
    folder = copied("ar_auto_gptq_W4A16_asym", tmp_path)
    assert any("states no checkpoint_format" in note for note in read_parameters(folder / "model.safetensors", {}).notes)
    first = read_parameters(folder / "model.safetensors", {}).tensors[f"{LAYERS[0]}.weight"]
    changed(folder, checkpoint_format="gptq_v2")
    second = read_parameters(folder / "model.safetensors", {}).tensors[f"{LAYERS[0]}.weight"]
    assert first.quantization is not None and second.quantization is not None
    np.testing.assert_array_equal(first.quantization.zero_point, second.quantization.zero_point + 1)
    (folder / "config.json").unlink()
    assert any("no quantization_config was found" in note for note in read_parameters(folder / "model.safetensors", {}).notes)


def overwritten(folder: Path, key: str, change: Callable[[Any], None]) -> None:
    """Change numbers of a tensor of two or four bytes."""
    head, data = parts(folder)
    first, last = head[key]["data_offsets"]
    numbers = np.frombuffer(data[first:last], np.float16 if head[key]["dtype"] == "F16" else np.int32).copy()
    change(numbers)
    put_together(folder, head, data[:first] + numbers.tobytes() + data[last:])


def test_bad_checkpoints(tmp_path: Path) -> None:
    def fails(name: str, rule: str, kind: type[Any], damage: Callable[[Path], None]) -> None:
        folder = copied(name, tmp_path / f"{rule}-{name}")
        damage(folder)
        with refused(kind, rule):
            read_parameters(folder / "model.safetensors", {})

    def first(key: str, value: Any) -> Callable[[Path], None]:
        def change(numbers: Any) -> None:
            numbers[0] = value

        return lambda folder: overwritten(folder, f"{LAYERS[0]}.{key}", change)

    def without(key: str) -> Callable[[Path], None]:
        def damage(folder: Path) -> None:
            head, data = parts(folder)
            del head[f"{LAYERS[0]}.{key}"]
            put_together(folder, head, data)

        return damage

    def replaced_by_folder(folder: Path) -> None:
        (folder / "config.json").unlink()
        (folder / "config.json").mkdir()

    def shape(key: str, sizes: list[int]) -> Callable[[Path], None]:
        def damage(folder: Path) -> None:
            head, data = parts(folder)
            head[f"{LAYERS[0]}.{key}"]["shape"] = sizes
            put_together(folder, head, data)

        return damage

    def raw(key: str, value: int) -> Callable[[Path], None]:
        def damage(folder: Path) -> None:
            head, data = parts(folder)
            first = head[f"{LAYERS[0]}.{key}"]["data_offsets"][0]
            put_together(folder, head, data[:first] + bytes([value]) + data[first + 1 :])

        return damage

    fails("gm_v2_asym", "config-contradicts", InvalidModelError, lambda folder: changed(folder, bits=8))
    fails("gm_v2_asym", "blocks-not-covered", UnsupportedError, lambda folder: changed(folder, checkpoint_format="gptq_p"))
    fails("ar_auto_awq_W4A16_asym", "blocks-not-covered", UnsupportedError, lambda folder: changed(folder, version="gemv"))
    fails("gm_v2_asym", "scale-not-finite", InvalidModelError, first("scales", np.nan))
    fails("gm_v2_asym", "wrong-groups", InvalidModelError, first("g_idx", 9))
    fails("gm_v2_asym", "blocks-do-not-fit", InvalidModelError, shape("qweight", [32, 512]))
    fails("gm_v2_asym", "damaged-header", InvalidModelError, shape("qweight", [2**61, 2]))
    fails("gm_v2_asym", "wrong-type", InvalidModelError, without("qzeros"))
    fails("ar_auto_gptq_W4A16_asym", "zero-point-ambiguous", UnsupportedError, first("qzeros", -1))
    fails("ar_auto_awq_W4A16_asym", "blocks-do-not-fit", InvalidModelError, shape("scales", [2, 512]))
    fails("ct_W4A16_ASYM", "blocks-do-not-fit", InvalidModelError, shape("weight_zero_point", [64, 2]))
    fails("ct_W4A16", "wrong-type", InvalidModelError, without("weight_scale"))
    fails("ct_MXFP4A16", "scale-not-finite", InvalidModelError, raw("weight_scale", 255))
    fails("mo_INT4_AWQ", "wrong-type", InvalidModelError, shape("pre_quant_scale", [2, 256]))
    fails("mo_INT4_AWQ", "blocks-do-not-fit", InvalidModelError, shape("weight_scale", [128, 8]))
    fails("ct_W4A16", "not-json", InvalidModelError, lambda folder: (folder / "config.json").write_text("[" * 100_000) and None)
    fails("ct_W4A16", "damaged-config", InvalidModelError, lambda folder: (folder / "config.json").write_text("[]") and None)
    fails("ct_W4A16_ASYM", "damaged-config", InvalidModelError, lambda folder: changed(folder, config_groups="Linear"))
    fails("gm_v2_asym", "damaged-config", InvalidModelError, lambda folder: changed(folder, bits="4"))
    fails("gm_desc4", "config-contradicts", InvalidModelError, lambda folder: changed(folder, quant_method="awq"))
    fails("gm_v2_asym", "not-a-regular-file", InvalidModelError, replaced_by_folder)


def test_a_folder_stands_for_the_checkpoint_in_it(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "gm_v2_asym", tmp_path / "one")
    network(tmp_path)
    assert load(tmp_path / "one", graph=tmp_path / "float.onnx").constants()
    shutil.copyfile(tmp_path / "one" / "model.safetensors", tmp_path / "one" / "second.safetensors")
    with refused(FileAccessError, "is-a-folder") as caught:  # no index says which is meant
        load(tmp_path / "one")
    assert caught.value.remedy.startswith("Name a file in it, such as ")
    (tmp_path / "one" / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with refused(InvalidModelError, "damaged-config", holds=("weight_map is empty", "model.safetensors.index.json")):
        load(tmp_path / "one", graph=tmp_path / "float.onnx")
