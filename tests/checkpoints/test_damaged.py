"""Damaged checkpoints: one error that the user can read, or a result with the same weights; never anything else."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.checkpoints.source import CheckpointSource
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.checkpoints import SUMMARIES

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[2] / "fixtures" / "blocks"
NAMES = sorted(folder.name for folder in FIXTURES.iterdir() if folder.is_dir())
VALUES = (0, -1, 3, 8, 2**31, 2**62, -(2**40), 1.5, None, True, "x", "nf4", [], {}, [1, 2], [2**61, 2], "gptq_v2", "I8", "F16")
LAYER = "model.layers.0.self_attn.q_proj"


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(path: Path, head: dict[str, Any], data: bytes) -> None:
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def changed(value: Any, choose: random.Random) -> Any:
    """A document with one value inside it replaced, or one entry gone."""
    if isinstance(value, dict) and value and choose.random() < 0.8:
        key = choose.choice(list(value))
        if choose.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: changed(value[key], choose)}
    if isinstance(value, list) and value and choose.random() < 0.7:
        place = choose.randrange(len(value))
        return [changed(item, choose) if index == place else item for index, item in enumerate(value)]
    return copy.deepcopy(choose.choice(VALUES))


def damage(folder: Path, choose: random.Random) -> None:
    head, data = split(folder / "model.safetensors")
    how = choose.randrange(5)
    if how == 0:
        head = changed(head, choose)
    elif how == 1:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(changed(changed(config, choose), choose)))
    elif how == 2:
        wild = bytearray(data)
        for _ in range(choose.randint(1, 40)):
            wild[choose.randrange(len(wild))] = choose.choice((0, 255, 127, 128))
        data = bytes(wild)
    elif how == 3:
        data = data[: choose.randrange(len(data))]
    else:
        keys = [key for key in head if key != "__metadata__"]
        first, second = choose.choice(keys), choose.choice(keys)
        head[first], head[second] = head[second], head[first]
    joined(folder / "model.safetensors", head, data)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(24))
def test_damage_is_an_error_or_changes_no_weight(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    for _ in range(10):
        folder = tmp_path / "source"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(FIXTURES / choose.choice(NAMES), folder)
        damage(folder, choose)
        try:
            report = qconvert.convert(
                folder, tmp_path / "out", result_format=choose.choice(list(SUMMARIES)), requantize=choose.random() < 0.5
            )
        except QConvertError as error:
            assert error.rule and {item.name for item in tmp_path.iterdir()} == {"source"}
            continue
        assert not report.kept_all or qconvert.diff(folder, tmp_path / "out") == []
        shutil.rmtree(tmp_path / "out")


def test_what_files_of_mlx_and_bitsandbytes_cannot_say(tmp_path: Path) -> None:
    def fails(name: str, kind: type[QConvertError], rule: str, change: Any) -> None:
        folder = tmp_path / f"{name}-{rule}-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(FIXTURES / name, folder)
        change(folder)
        with refused(kind, rule):
            CheckpointSource.of(folder / "model.safetensors").weight(LAYER)

    def config(**stated: Any) -> Any:
        def change(folder: Path) -> None:
            model = json.loads((folder / "config.json").read_text())
            key = "quantization" if "quantization" in model else "quantization_config"
            text = json.dumps({**model, "quantization_config": {**model[key], **stated}, "quantization": {**model[key], **stated}})
            (folder / "config.json").write_text(text)

        return change

    def state(text: bytes) -> Any:
        """Another JSON text of the same length."""

        def change(folder: Path) -> None:
            head, data = split(folder / "model.safetensors")
            first, last = head[f"{LAYER}.weight.quant_state.bitsandbytes__nf4"]["data_offsets"]
            joined(folder / "model.safetensors", head, data[:first] + text.ljust(last - first) + data[last:])

        return change

    def shape(part: str, sizes: list[int]) -> Any:
        def change(folder: Path) -> None:
            head, data = split(folder / "model.safetensors")
            head[f"{LAYER}.{part}"]["shape"] = sizes
            joined(folder / "model.safetensors", head, data)

        return change

    def number(part: str, value: bytes) -> Any:
        def change(folder: Path) -> None:
            head, data = split(folder / "model.safetensors")
            first = head[f"{LAYER}.{part}"]["data_offsets"][0]
            joined(folder / "model.safetensors", head, data[:first] + value + data[first + len(value) :])

        return change

    fails("mlx4", InvalidModelError, "config-contradicts", config(bits=8, group_size=64))
    fails("mlx4", InvalidModelError, "config-contradicts", config(bits=7))
    fails("mlx4", InvalidModelError, "blocks-do-not-fit", shape("biases", [128, 8]))
    fails("mlx4", InvalidModelError, "scale-not-finite", number("scales", np.float16(np.nan).tobytes()))
    fails("bnb_int8", InvalidModelError, "scale-not-finite", number("SCB", np.float32(np.nan).tobytes()))
    fails("bnb_int8", InvalidModelError, "wrong-type", shape("weight", [128, 512]))
    fails("bnb_int8", UnsupportedError, "blocks-not-covered", number("weight_format", b"\1"))
    fails("bnb_nf4_plain", InvalidModelError, "not-json", state(b"{"))
    fails("bnb_nf4_plain", InvalidModelError, "not-json", state(b"[" * 60))
    fails("bnb_nf4_plain", InvalidModelError, "wrong-type", state(b"[]"))
    fails("bnb_nf4_plain", InvalidModelError, "damaged-config", state(b'{"shape": [256, -256], "blocksize": 64}'))
    fails("bnb_nf4_plain", InvalidModelError, "blocks-do-not-fit", state(b'{"shape": [256, 512], "blocksize": 64}'))
    fails("bnb_nf4_plain", InvalidModelError, "blocks-do-not-fit", state(b'{"shape": [256, 256], "blocksize": 96}'))
    fails("bnb_nf4_plain", UnsupportedError, "blocks-not-covered", state(b'{"shape": [16384, 4], "blocksize": 64}'))
    fails("bnb_nf4_plain", InvalidModelError, "scale-not-finite", number("weight.absmax", np.float32(np.inf).tobytes()))
    fails("bnb_nf4_plain", InvalidModelError, "wrong-type", number("weight.quant_map", np.float32(np.nan).tobytes()))


def test_what_headers_of_torchao_cannot_say(tmp_path: Path) -> None:
    def fails(
        name: str, kind: type[QConvertError], rule: str, *, part: str = "", number: bytes = b"", class_name: str = "", **said: Any
    ) -> None:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        shutil.copytree(FIXTURES / name, folder)
        head, data = split(folder / "model.safetensors")
        stated = json.loads(head["__metadata__"][f"{LAYER}.weight"])
        stated["_data"].update(said)
        stated["_type"] = class_name or stated["_type"]
        head["__metadata__"][f"{LAYER}.weight"] = json.dumps(stated)
        if number:
            first = head[f"{LAYER}._weight_{part}"]["data_offsets"][0]
            data = data[:first] + number + data[first + len(number) :]
        elif part:
            head[f"{LAYER}._weight_more"] = head.pop(f"{LAYER}._weight_{part}")
        joined(folder / "model.safetensors", head, data)
        with refused(kind, rule):
            CheckpointSource.of(folder / "model.safetensors").weight(LAYER)

    for how in (
        {"granularity": {"_type": "PerGroup", "_data": {"group_size": 32}}},
        {"granularity": {"_type": "PerRow"}, "reduce_range": True},
        {"granularity": {"_type": "PerRow"}, "float8_dtype": {"_type": "torch.dtype", "_data": "float8_e5m2"}},
    ):
        fails("ao_int8", UnsupportedError, "dynamic-operator", act_quant_kwargs={"_type": "QuantizeTensorToInt8Kwargs", "_data": how})
    fails("ao_intx4", UnsupportedError, "dynamic-operator", activation_quantization="int4_per_token")
    fails("ao_int4", UnsupportedError, "dynamic-operator", activation_dtype={"_type": "torch.dtype", "_data": "float8_e4m3fn"})
    fails("ao_int8", UnsupportedError, "class-not-covered", class_name="NVFP4Tensor")
    fails("ao_intx4", UnsupportedError, "dtype-not-covered", target_dtype={"_type": "torch.dtype", "_data": "int1"})
    fails("ao_intx4", InvalidModelError, "value-outside-type", target_dtype={"_type": "torch.dtype", "_data": "int3"})
    fails("ao_intx4", InvalidModelError, "wrong-type", block_size=[1, 64])
    fails("ao_intx4", InvalidModelError, "blocks-do-not-fit", block_size=[1, 48])
    fails("ao_int8", InvalidModelError, "blocks-do-not-fit", block_size=None)
    fails("ao_float8", InvalidModelError, "weights-not-finite", part="qdata", number=b"\x7f")
    fails("ao_float8", InvalidModelError, "scale-not-finite", part="scale", number=np.float32(np.inf).tobytes())
    fails("ao_int4", UnsupportedError, "blocks-not-covered", part="qdata")
    fails("ao_int4", UnsupportedError, "blocks-not-covered", part="zero_point")
