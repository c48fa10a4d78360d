"""Weights with a byte for each, FP8 and int8: codes and scales as each tool lays them out, how data are rounded, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoint_formulas import write_checkpoint
from refusals import refused

import qconvert
from qconvert import convert
from qconvert.checkpoints import weight as weight_module
from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.nearest import find_nearest_weight, signal_to_noise
from qconvert.checkpoints.safetensors import written_file
from qconvert.checkpoints.small_floats import FP8, FP8_MODELOPT
from qconvert.checkpoints.source import CheckpointSource, checkpoint_summary
from qconvert.checkpoints.weight import E2M1, E4M3, BlockWeight, pack, words_of_bytes
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.torch.states.reader import read_parameters

pytestmark = pytest.mark.formats

RNG = np.random.default_rng(5)
BY_GROUPS = Activations("float8e4m3fn", "group", 128)
BY_ONE_SCALE = Activations("float8e4m3fn", "tensor", is_dynamic=False, scale=0.25)
CODES = np.array([code for code in range(256) if code & 127 != 127], np.uint8)


def checkpoint(folder: Path, stated: Any, **tensors: Any) -> Path:
    """One layer, m.l, and what config.json states of it."""
    return write_checkpoint(folder, {f"m.l.{name}": tensor for name, tensor in tensors.items()}, stated)


def read(folder: Path) -> BlockWeight:
    return CheckpointSource.of(folder / "model.safetensors").weight("m.l")


def fp8(outputs: int, inputs: int) -> Any:
    """Random codes, the two zeros among them."""
    codes = RNG.choice(CODES, (outputs, inputs))
    codes[0, :2] = 0x80, 0
    return codes.view(ml_dtypes.float8_e4m3fn)


def compressed(weights: Any = None, data: Any = None, **more: Any) -> Any:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": data}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


def test_values_of_codes() -> None:
    np.testing.assert_array_equal(E4M3, np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert np.signbit(E4M3[0x80]) and {E2M1.tobytes()[at : at + 4] for at in range(0, 64, 4)} <= {item.tobytes() for item in E4M3}


BLOCKS = {"weights": {"strategy": "block", "block_structure": [128, 128], "group_size": None}}
#: Shape of the scales of [200, 320] weights -> which weights share one; what config.json states.
LAYOUTS = {
    (): ("tensor", {"quant_method": "modelopt", "quant_algo": "FP8"}),
    (1,): ("tensor", compressed({"strategy": "tensor", "group_size": None})),
    (200,): ("channel", {"quant_method": "quark"}),
    (200, 1): ("channel", compressed({"strategy": "channel", "group_size": None})),
    (200, 10): ("group", compressed({"strategy": "group", "group_size": 32})),
    (2, 3): ("block", compressed(**BLOCKS)),
    (2, 1, 3, 1): ("block", {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}),
}


@pytest.mark.parametrize("kind", ["fp8", "int8"])
@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
def test_scales_of_each_layout(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Every weight is its code times its scale; the last blocks of 128 x 128 are not full. compressed-tensors has all of it again."""
    strategy, stated = LAYOUTS[shape]
    codes = fp8(200, 320) if kind == "fp8" else RNG.integers(-128, 128, (200, 320), np.int64).astype(np.int8)
    scale = RNG.uniform(0.01, 1, shape).astype(np.float32)
    folder = checkpoint(tmp_path / "s", stated, weight=codes, weight_scale=scale)
    wanted = np.empty((200, 320))
    for n in range(200):
        for k in range(320):
            place = {"tensor": 0, "channel": n, "group": n * 10 + k // 32, "block": n // 128 * 3 + k // 128}[strategy]
            wanted[n, k] = float(codes[n, k]) * float(scale.reshape(-1)[place])
    weight = read(folder)
    np.testing.assert_array_equal(weight.exact_values(), wanted)
    convert(folder, tmp_path / "o", result_format=f"compressed-tensors-{kind}")
    assert qconvert.diff(folder, tmp_path / "o") == []
    tensors = CheckpointSource.of(tmp_path / "o" / "model.safetensors").checkpoint.tensors
    assert tensors["m.l.weight"].tobytes() == codes.tobytes()
    (group,) = json.loads((tmp_path / "o" / "config.json").read_text())["quantization_config"]["config_groups"].values()
    # blocks of 320 inputs are 128, 128 and 64, which are five of 64
    assert group["weights"]["strategy"] == {"block": "group", "tensor": "tensor" if kind == "fp8" else "channel"}.get(strategy, strategy)


def test_blocks_of_128_outputs_and_inputs_stay_so(tmp_path: Path) -> None:
    stated = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    folder = checkpoint(tmp_path / "s", stated, weight=fp8(200, 256), weight_scale_inv=RNG.uniform(1, 2, (2, 2)).astype(np.float32))
    convert(folder, tmp_path / "ct", result_format="compressed-tensors-fp8")
    convert(tmp_path / "ct", tmp_path / "back", result_format="fp8")
    first, last = (CheckpointSource.of(place / "model.safetensors").checkpoint.tensors for place in (folder, tmp_path / "back"))
    assert first.keys() == last.keys() and all(first[name].tobytes() == last[name].tobytes() for name in first)
    (group,) = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]["config_groups"].values()
    assert (group["weights"]["strategy"], group["weights"]["block_structure"]) == ("block", [128, 128])
    assert (group["input_activations"]["strategy"], group["input_activations"]["group_size"]) == ("group", 128)
    summary = checkpoint_summary(folder / "model.safetensors")
    assert summary is not None and summary["layers"][0]["values"] == "FP8 (E4M3)" and summary["layers"][0]["strategy"] == "block"


def test_integers_of_4_bits_in_bytes(tmp_path: Path) -> None:
    integers = RNG.integers(-8, 8, (16, 64), np.int64).astype(np.int8)
    stated = compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False})
    zeros = RNG.integers(-8, 8, (16, 2), np.int64).astype(np.int8)
    scale = RNG.uniform(0.01, 1, (16, 2)).astype(np.float16)
    folder = checkpoint(tmp_path / "s", stated, weight=integers, weight_scale=scale, weight_zero_point=zeros)
    weight = read(folder)
    wanted = (integers.astype(np.float64) - np.repeat(zeros, 32, axis=1)) * np.repeat(scale.astype(np.float64), 32, axis=1)
    assert weight.bits == 4
    np.testing.assert_array_equal(weight.exact_values(), wanted)
    for result in ("gptq-v2", "awq", "compressed-tensors", "compressed-tensors-int8"):
        convert(folder, tmp_path / result, result_format=result)
        assert qconvert.diff(folder, tmp_path / result) == []
    again = CheckpointSource.of(tmp_path / "compressed-tensors-int8" / "model.safetensors").checkpoint.tensors
    assert again["m.l.weight"].tobytes() == integers.tobytes() and again["m.l.weight_zero_point"].tobytes() == zeros.tobytes()


def data_of(**more: Any) -> Any:
    return {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, **more}


def quark(**more: Any) -> Any:
    return {"quant_method": "quark", "global_quant_config": {"input_tensors": {"is_dynamic": True, "symmetric": True, **more}}}


STATED = [
    (compressed(), None),
    (compressed(data=data_of(strategy="token")), Activations("float8e4m3fn", "token")),
    (compressed(data=data_of(strategy="token", type="int", symmetric=False)), Activations("int8", "token", is_symmetric=False)),
    (compressed(data=data_of(strategy="group", group_size=128)), BY_GROUPS),
    (
        compressed(data=data_of(strategy="group", group_size=32, scale_dtype="torch.uint8")),
        Activations("float8e4m3fn", "group", 32, has_powers=True),
    ),
    (compressed(data=data_of(strategy="tensor", dynamic=False)), BY_ONE_SCALE),
    (compressed(data={"num_bits": 8, "type": "float", "dynamic": False}), BY_ONE_SCALE),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, BY_ONE_SCALE),
    ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, Activations("float8e4m3fn", "token")),
    ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, Activations("float8e4m3fn", "group", 32, has_powers=True)),
    (quark(dtype="fp8_e4m3", qscheme="per_channel"), Activations("float8e4m3fn", "token")),
    (quark(dtype="int8", qscheme="per_tensor", is_dynamic=False), replace(BY_ONE_SCALE, dtype="int8")),
    (quark(dtype="fp4", qscheme="per_group", group_size=32, scale_format="e8m0"), Activations("float4e2m1", "group", 32, has_powers=True)),
    ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, BY_GROUPS),
    (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
        replace(BY_GROUPS, has_powers=True),
    ),
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, Activations("float8e4m3fn", "token")),
    ({"quant_method": "fp8", "activation_scheme": "static"}, BY_ONE_SCALE),
]


@pytest.mark.parametrize("place", range(len(STATED)))
def test_how_data_are_rounded(place: int, tmp_path: Path) -> None:
    """As each tool states it, and as compressed-tensors states it then; float16 holds these scales."""
    stated, wanted = STATED[place]
    own = {"input_scale": np.float16(0.25)} if wanted is not None and not wanted.is_dynamic else {}
    scale = np.ones((1, 2) if stated.get("weight_block_size") else (128, 1), np.float16)
    folder = checkpoint(tmp_path / "s", stated, weight=fp8(128, 256), weight_scale=scale, **own)
    assert read(folder).activations == wanted
    if wanted is not None and wanted.has_powers and wanted.group != 32:
        with refused(UnsupportedError, "not-lossless"):
            convert(folder, tmp_path / "o", result_format="compressed-tensors-fp8")
        return
    convert(folder, tmp_path / "o", result_format="compressed-tensors-fp8")
    assert read(tmp_path / "o").activations == wanted and qconvert.diff(folder, tmp_path / "o") == []


def test_zero_points_of_data(tmp_path: Path) -> None:
    """One is kept, whether the configuration states it or not."""
    integers, scale = RNG.integers(-128, 128, (16, 32), np.int64).astype(np.int8), np.ones((16, 1), np.float32)
    for symmetric in (True, False):
        stated = compressed(data=data_of(type="int", strategy="tensor", dynamic=False, symmetric=symmetric))
        own = {"input_scale": np.float32(0.25), "input_zero_point": np.array([-3], np.int8)}
        folder = checkpoint(tmp_path / f"s{symmetric}", stated, weight=integers, weight_scale=scale, **own)
        assert read(folder).activations == Activations("int8", "tensor", is_symmetric=False, is_dynamic=False, scale=0.25, zero=-3)
        convert(folder, tmp_path / f"o{symmetric}", result_format="compressed-tensors")
        assert read(tmp_path / f"o{symmetric}").activations == read(folder).activations


NVFP4_DATA = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "dynamic": "local"}


def nvfp4(folder: Path, data: Any, **more: Any) -> Path:
    """A layer of NVFP4 of compressed-tensors, whose second level of scales is a power of two."""
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    packed = RNG.integers(0, 256, (32, 32), np.uint8)
    scale = RNG.integers(0x30, 0x50, (32, 4)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    outer = np.array([1024], np.float32)
    return checkpoint(folder, compressed(weights, data), weight_packed=packed, weight_scale=scale, weight_global_scale=outer, **more)


def test_two_levels_of_scales_of_data(tmp_path: Path) -> None:
    """NVFP4 of weights and data: the second level is kept, and inverted where that gives the same scales."""
    for place, (level, is_exact) in enumerate(((256.0, True), (300.7, False))):
        folder = nvfp4(tmp_path / f"s{place}", NVFP4_DATA, input_global_scale=np.array([level], np.float32))
        wanted = Activations("float4e2m1", "group", 16, scale=float(np.float32(level)), scale_divides=True)
        assert read(folder).activations == wanted
        convert(folder, tmp_path / f"same{place}", result_format="nvfp4")
        assert read(tmp_path / f"same{place}").activations == wanted
        assert qconvert.diff(folder, tmp_path / f"same{place}") == []
        if not is_exact:
            with refused(UnsupportedError, "not-lossless"):
                convert(folder, tmp_path / "no", result_format="nvfp4-modelopt")
            continue
        convert(folder, tmp_path / "m", result_format="nvfp4-modelopt")
        assert read(tmp_path / "m").activations == replace(wanted, scale=1 / level, scale_divides=False)
        assert qconvert.diff(folder, tmp_path / "m") == []
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        assert config["quantization_config"]["quant_algo"] == "NVFP4"
        convert(tmp_path / "m", tmp_path / "back", result_format="nvfp4")
        assert qconvert.diff(folder, tmp_path / "back") == []
    with refused(UnsupportedError, "not-lossless"):
        convert(folder, tmp_path / "no", result_format="compressed-tensors-fp8")
    report = convert(folder, tmp_path / "w", result_format="compressed-tensors-fp8", requantize=True)
    assert read(tmp_path / "w").activations is None and not report.kept_all


def test_two_levels_that_contradict(tmp_path: Path) -> None:
    level = np.array([2], np.float32)
    with refused(InvalidModelError, "config-contradicts"):
        read(nvfp4(tmp_path / "a", NVFP4_DATA))
    with refused(InvalidModelError, "config-contradicts"):
        read(nvfp4(tmp_path / "both", NVFP4_DATA, input_global_scale=level, input_scale=1 / level))
    for other in ({"strategy": "tensor"}, {"symmetric": False}, {"scale_dtype": "torch.uint8"}, {"group_size": 32}):
        with refused(UnsupportedError, "dynamic-operator"):
            read(nvfp4(tmp_path / next(iter(other)), {**NVFP4_DATA, **other}, input_global_scale=level))
    with refused(InvalidModelError, "scale-not-positive"):
        read(nvfp4(tmp_path / "negative", NVFP4_DATA, input_global_scale=-level))
    with refused(InvalidModelError, "config-contradicts"):
        read(nvfp4(tmp_path / "b", None, input_global_scale=level))
    with refused(InvalidModelError, "scale-not-finite"):
        read(nvfp4(tmp_path / "c", NVFP4_DATA, input_global_scale=level * np.nan))


BAD_STATED = [
    (UnsupportedError, "dynamic-operator", compressed(data=data_of(strategy="tensor_group", group_size=16, dynamic="local"))),
    (UnsupportedError, "dynamic-operator", compressed(data=data_of(strategy="group"))),
    (UnsupportedError, "dynamic-operator", compressed(data=data_of(strategy="token", num_bits=6))),
    (UnsupportedError, "dynamic-operator", compressed(data=data_of(strategy="token", dynamic=False))),
    (UnsupportedError, "dynamic-operator", compressed(data=[1])),
    (UnsupportedError, "dynamic-operator", quark(dtype="uint8", qscheme="per_tensor")),
    (UnsupportedError, "dynamic-operator", {"quant_method": "fp8", "activation_scheme": "x"}),
    (InvalidModelError, "config-contradicts", compressed(data=data_of(strategy="tensor", dynamic=False))),
    (InvalidModelError, "damaged-config", compressed({"block_structure": [128]})),
    (InvalidModelError, "damaged-config", {"quant_method": "fp8", "weight_block_size": [0, 128]}),
    (InvalidModelError, "blocks-do-not-fit", compressed({"block_structure": [64, 64]})),
    (InvalidModelError, "config-contradicts", compressed({"group_size": 64})),
    (UnsupportedError, "blocks-not-covered", {"quant_method": "fbgemm_fp8"}),
]


@pytest.mark.parametrize("place", range(len(BAD_STATED)))
def test_what_a_configuration_may_not_say(place: int, tmp_path: Path) -> None:
    error, rule, stated = BAD_STATED[place]
    with refused(error, rule):
        read(checkpoint(tmp_path / "s", stated, weight=fp8(128, 256), weight_scale=np.ones((128, 8), np.float16)))


def test_bad_bytes(tmp_path: Path) -> None:
    def fails(error: type[QConvertError], rule: str, stated: Any = None, **tensors: Any) -> None:
        with refused(error, rule):
            read(checkpoint(tmp_path / str(len(list(tmp_path.iterdir()))), stated, **tensors))

    good, ones = fp8(32, 96), np.ones((32, 1), np.float32)
    for code in (0x7F, 0xFF):
        bad = good.copy()
        bad.view(np.uint8)[31, 95] = code
        fails(InvalidModelError, "weights-not-finite", weight=bad, weight_scale=ones)
        fails(InvalidModelError, "weights-not-finite", weight=bad, weight_scale=np.full((32, 3), 127, np.uint8))
        words = {"weight": bad.view(np.uint32), "scales": np.full((32, 3), 127, np.uint8)}
        fails(InvalidModelError, "weights-not-finite", {"mode": "mxfp8"}, **words)
    for number in (np.nan, np.inf):
        fails(InvalidModelError, "scale-not-finite", weight=good, weight_scale=ones * np.float32(number))
        fails(InvalidModelError, "scale-not-finite", weight=good, weight_scale=ones, input_scale=np.float32(number))
    fails(InvalidModelError, "scale-not-finite", weight=good, weight_scale=np.full((32, 3), 255, np.uint8))
    fails(InvalidModelError, "scale-not-finite", weight=good, weight_scale=ones, input_scale=np.float32(0))
    for shape in ((31, 1), (32, 5), (33,), (2, 2), (1, 1, 2, 1), (32, 1, 1)):
        fails(InvalidModelError, "wrong-type" if shape == (32, 1, 1) else "blocks-do-not-fit", weight=good, weight_scale=np.ones(shape))
    fails(InvalidModelError, "blocks-do-not-fit", weight=good, weight_scale=np.full((32, 5), 127, np.uint8))
    fails(InvalidModelError, "wrong-type", weight=good, weight_scale=np.ones((32, 1), np.int32))
    dynamic = compressed(data=data_of(strategy="token"))
    fails(InvalidModelError, "config-contradicts", dynamic, weight=good, weight_scale=ones, input_scale=np.float32(1))
    small = RNG.integers(-9, 9, (32, 96), np.int64).astype(np.int8)
    small[0, 0] = 8
    fails(InvalidModelError, "config-contradicts", compressed({"num_bits": 4}), weight=small, weight_scale=ones)
    zeros = np.zeros((32, 3), np.int8)
    fails(InvalidModelError, "blocks-do-not-fit", weight=small, weight_scale=ones, weight_zero_point=zeros)
    fails(InvalidModelError, "wrong-type", weight=small, weight_scale=ones, weight_zero_point=ones)
    fails(UnsupportedError, "blocks-not-covered", weight=good, weight_scale=ones, pre_quant_scale=np.ones(96, np.float32))


def test_layers_of_several_groups(tmp_path: Path) -> None:
    """A name or a pattern goes before the class; a pattern that could take exponential time is refused."""
    int8 = {"targets": ["Linear"], "weights": {"num_bits": 8}, "input_activations": data_of(type="int", strategy="token")}
    own = {"targets": ["m.l"], "weights": {"num_bits": 8}, "input_activations": None}
    weight, scale = fp8(16, 32), np.ones((16, 1), np.float32)
    for place, (target, wanted) in enumerate({"m.l": None, r"re:.*\.l$": None, "m.k": Activations("int8", "token")}.items()):
        stated = {"quant_method": "compressed-tensors", "config_groups": {"a": int8, "b": {**own, "targets": [target]}}}
        assert read(checkpoint(tmp_path / str(place), stated, weight=weight, weight_scale=scale)).activations == wanted
    for target, error in (("re:(a|a)*b", UnsupportedError), ("re:" + ".*" * 9, UnsupportedError), ("re:[", InvalidModelError)):
        stated = {"quant_method": "compressed-tensors", "config_groups": {"a": int8, "b": {**own, "targets": [target]}}}
        with pytest.raises(error, match="the pattern"):
            read(checkpoint(tmp_path / str(abs(hash(target))), stated, weight=weight, weight_scale=scale))


@pytest.mark.parametrize("blocks", [None, (16, 32)])
def test_packed_integers_with_one_scale_or_blocks_of_several_outputs(blocks: Any, tmp_path: Path) -> None:
    """Their zero points are not packed: pack_quantized of compressed-tensors packs those of groups and rows alone."""
    shape = (1,) if blocks is None else (4, 2)
    steps, scales = RNG.integers(-8, 8, (64, 64), np.int8), RNG.uniform(0.01, 0.1, shape).astype(np.float16)
    zeros = RNG.integers(-8, 8, shape, np.int8)
    tensors = {"weight_packed": pack((steps + 8).view(np.uint8), 4).view(np.int32), "weight_shape": np.array([64, 64])}
    stated = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "block" if blocks else "tensor", "block_structure": blocks}
    folder = checkpoint(tmp_path / "s", compressed(stated), **tensors, weight_scale=scales, weight_zero_point=zeros)
    of_each = (item.astype(np.float32).repeat(16, 0).repeat(32, 1) if blocks else item.astype(np.float32) for item in (zeros, scales))
    np.testing.assert_array_equal(read(folder).values(), (steps - next(of_each)) * next(of_each))
    for result in ("gptq-v2", "awq", "compressed-tensors", "mlx"):
        assert convert(folder, tmp_path / result, result_format=result).kept_all
        assert qconvert.diff(folder, tmp_path / result) == []
    other = checkpoint(tmp_path / "other", compressed(stated), **tensors, weight_scale=scales, weight_zero_point=zeros.repeat(2))
    with refused(InvalidModelError, "blocks-do-not-fit", holds=("weight_zero_point", "weight_scale")):
        read(other)
    folder = checkpoint(tmp_path / "large", compressed(stated), **tensors, weight_scale=scales, weight_zero_point=zeros + np.int8(100))
    with refused(InvalidModelError, "config-contradicts", holds=("4 bits",)):
        read(folder)


def test_scales_of_the_cache_next_to_a_layer_are_carried(tmp_path: Path) -> None:
    stated = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    scale, data = np.float32(0.5), np.float32(0.25)
    folder = checkpoint(tmp_path / "s", stated, weight=fp8(16, 32), weight_scale=scale, input_scale=data, k_scale=np.float32(2))
    report = convert(folder, tmp_path / "o", result_format="compressed-tensors-fp8")
    assert any("KV cache" in str(change) for change in report.changes) and qconvert.diff(folder, tmp_path / "o") == []
    found = read_parameters(folder / "model.safetensors", {})
    assert list(found.tensors) == ["m.l.weight"] and any("KV cache" in note for note in found.notes)
    assert float(CheckpointSource.of(tmp_path / "o" / "model.safetensors").plain["m.l.k_scale"]) == 2


def test_data_that_are_rounded_need_room(tmp_path: Path) -> None:
    """Without it the weights alone are exact, which is asked for by requantize and is no conversion that keeps all."""
    stated = compressed({"num_bits": 8}, data_of(type="int", strategy="token"))
    integers = RNG.integers(-128, 128, (32, 64), np.int64).astype(np.int8)
    folder = checkpoint(tmp_path / "s", stated, weight=integers, weight_scale=np.ones((32, 1), np.float16))
    with pytest.raises(UnsupportedError, match="data are rounded to int8 with a scale for each token"):
        convert(folder, tmp_path / "o", result_format="gptq")
    report = convert(folder, tmp_path / "o", result_format="gptq", requantize=True)
    assert not report.kept_all and [cost.sqnr_db for change in report.changes for cost in change.costs] == [None]
    np.testing.assert_array_equal(read(tmp_path / "o").exact_values(), integers)
    (line,) = qconvert.diff(folder, tmp_path / "o")
    assert line == "layer m.l: data are rounded to int8 with a scale for each token at each run -> float"


@pytest.mark.parametrize("name", ["fp8", "fp8-modelopt"])
def test_one_scale_for_several_outputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest weights have it, whatever outputs are computed at a time; codes of 3 bits of fraction are right to 25 dB."""
    container, how = (FP8, BY_GROUPS) if name == "fp8" else (FP8_MODELOPT, BY_ONE_SCALE)
    assert container.needs is not None and container.write is not None
    values = RNG.normal(size=(300, 256)).astype(np.float32) * np.linspace(0.5, 2, 300, dtype=np.float32)[:, None]
    scale = (np.abs(values).max(axis=1, keepdims=True) / 448).astype(np.float32)
    codes = (values / scale).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    weight = BlockWeight(words_of_bytes(codes), 8, 256, scale, table=E4M3, activations=how)
    whole = find_nearest_weight(weight, container.needs)
    monkeypatch.setattr(weight_module, "_AT_ONCE", 256 * 100)
    parts = find_nearest_weight(weight, container.needs)
    assert isinstance(whole, BlockWeight) and isinstance(parts, BlockWeight) and parts.activations == how
    np.testing.assert_array_equal(whole.exact_values(), parts.exact_values())
    assert whole.strategy == ("block" if name == "fp8" else "tensor") and 25 < (signal_to_noise(weight, whole) or 0) < 40
    stored = container.write(whole)["weight_scale_inv" if name == "fp8" else "weight_scale"]
    largest = np.abs(weight.exact_values())
    if name == "fp8":
        blocks = [[largest[n : n + 128, k : k + 128].max() for k in (0, 128)] for n in (0, 128, 256)]
        np.testing.assert_allclose(stored * 448, blocks, rtol=1e-6)
    else:
        assert stored.shape == () and float(stored) * 448 == pytest.approx(largest.max(), rel=1e-6)


def test_integers_from_minus_16_to_16_are_fp8(tmp_path: Path) -> None:
    """Of 8 bits those beyond are not all: 17 has five bits."""
    integers = RNG.integers(-16, 17, (16, 64), np.int64).astype(np.int8)
    stated, scale = compressed({"num_bits": 8}), np.ones((16, 1), np.float32)
    folder = checkpoint(tmp_path / "s", stated, weight=integers, weight_scale=scale)
    convert(folder, tmp_path / "o", result_format="compressed-tensors-fp8")
    np.testing.assert_array_equal(read(tmp_path / "o").exact_values(), integers)
    assert 0x80 not in read(tmp_path / "o").codes
    integers[3, 4:8] = 17, 18, -19, -128
    folder = checkpoint(tmp_path / "t", stated, weight=integers, weight_scale=scale)
    with pytest.raises(UnsupportedError, match=r"not all integers are floats of a few bits \(6\.2% to 6\.2%"):
        convert(folder, tmp_path / "p", result_format="compressed-tensors-fp8")


def test_fp4_is_fp8_of_the_same_values(tmp_path: Path) -> None:
    packed, powers = RNG.integers(0, 256, (16, 32), np.uint8), RNG.integers(110, 130, (16, 2), np.uint8)
    folder = checkpoint(tmp_path / "s", compressed(), weight_packed=packed, weight_scale=powers)
    for result in ("mxfp8", "mlx-mxfp8", "compressed-tensors-fp8"):
        convert(folder, tmp_path / result, result_format=result)
        assert qconvert.diff(folder, tmp_path / result) == []
    found, first = read(tmp_path / "mxfp8").exact_values(), read(folder).exact_values()
    np.testing.assert_array_equal(np.signbit(found), np.signbit(first))
    convert(tmp_path / "mxfp8", tmp_path / "mlx", result_format="mlx-mxfp8")
    assert qconvert.diff(folder, tmp_path / "mlx") == []


#: Attributes of classes, as torchao 0.18 writes them -> how data are rounded.
TORCHAO: list[tuple[str, Any, Activations]] = [
    (
        "Int8Tensor",
        {
            "act_quant_kwargs": {
                "_type": "QuantizeTensorToInt8Kwargs",
                "_data": {
                    "granularity": {"_type": "PerRow", "_data": {"dim": -1}},
                    "mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"},
                    "reduce_range": False,
                },
            }
        },
        Activations("int8", "token"),
    ),
    ("IntxUnpackedToInt8Tensor", {"activation_quantization": "int8_asym_per_token"}, Activations("int8", "token", is_symmetric=False)),
    (
        "Float8Tensor",
        {
            "act_quant_kwargs": {
                "_type": "QuantizeTensorToFloat8Kwargs",
                "_data": {
                    "float8_dtype": {"_type": "torch.dtype", "_data": "float8_e4m3fn"},
                    "granularity": {"_type": "PerTensor", "_data": {}},
                    "hp_value_lb": None,
                    "hp_value_ub": None,
                },
            }
        },
        Activations("float8e4m3fn", "tensor"),
    ),
]


@pytest.mark.parametrize(("kind", "attributes", "wanted"), TORCHAO)
def test_how_torchao_rounds_data(kind: str, attributes: Any, wanted: Activations, tmp_path: Path) -> None:
    is_fp8 = kind == "Float8Tensor"
    tensors = {
        "m.l._weight_qdata": fp8(8, 64) if is_fp8 else RNG.integers(-128, 128, (8, 64), np.int8),
        "m.l._weight_scale": RNG.uniform(0.1, 1, (8, 1)).astype(np.float32),
    }
    text = json.dumps({"_type": kind, "_data": {"block_size": [1, 64], **attributes}})
    (source := tmp_path / "s").mkdir()
    with written_file(source / "model.safetensors", list(tensors), {"m.l.weight": text}) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
    assert read(source).activations == wanted
    convert(source, tmp_path / "o", result_format="compressed-tensors-fp8" if is_fp8 else "compressed-tensors-int8")
    assert read(tmp_path / "o").activations == wanted and qconvert.diff(source, tmp_path / "o") == []
    with refused(UnsupportedError, "not-lossless"):
        convert(source, tmp_path / "p", result_format="gptq")
