"""Parts of a split network are held against the source operator by operator, each by the kernels that run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from qconvert import check, load, partition
from qconvert.errors import FileAccessError, OptionError
from qconvert.files import file_digest
from qconvert.operators.formulas import recurrent as formulas
from qconvert.partitioning.manifest import read_manifest
from qconvert.partitioning.running import PartitionModel
from qconvert.plugins import ModelFile

pytestmark = pytest.mark.litert

FIXTURES = Path(__file__).parents[2] / "fixtures"
MOBILENET = FIXTURES / "coral_mobilenet_v1_025_128_uint8.tflite"
DIGITS = FIXTURES / "digits" / "fx.onnx"
SMALL = FIXTURES / "tiny_ad_toycar_int8.tflite"


def test_a_lossy_region_in_a_tflite_file_is_explained_by_its_operators(tmp_path: Path) -> None:
    """uint8 weights lose their zero points: each operator is what was declared, and the network as a whole is not the source's."""
    found = partition(MOBILENET, "tflite-micro", split=tmp_path / "parts")
    assert len(found.regions) == 1 and found.regions[0].size == 31
    report = check(MOBILENET, tmp_path / "parts" / "manifest.json", samples=1)
    assert report.verdict == "passed", report.problems
    assert report.outputs[0].equal < 1
    assert {item.verdict for item in report.operators} <= {"requantized", "one rounding", "equal"}
    assert len(report.operators) == 31


@pytest.mark.onnxruntime
@pytest.mark.parametrize("target", ["tflite-micro", "tflite"])
def test_parts_in_the_other_layout(target: str, tmp_path: Path) -> None:
    """The source is channels first, and parts in .tflite files are channels last, the rest in onnxruntime channels first again."""
    partition(DIGITS, target, split=tmp_path / "parts")
    report = check(DIGITS, tmp_path / "parts" / "manifest.json", samples=2, per_op=True)
    assert report.verdict == "passed", report.problems
    assert not [item for item in report.operators if item.verdict in ("not compared", "unexplained")]


@pytest.mark.cross_section
def test_an_operator_that_somebody_changed_in_a_tflite_part_is_named(tmp_path: Path) -> None:
    """With the hash of what the file is now, so that the manifest agrees with it."""
    partition(SMALL, "tflite-same", split=tmp_path / "parts")
    with refused(FileAccessError, "is-a-folder") as caught:
        check(SMALL, tmp_path / "parts")
    assert caught.value.remedy == f"Name a file in it, such as {tmp_path / 'parts' / 'manifest.json'}."
    file = tmp_path / "parts" / "00_tflite-same_0.tflite"
    before, data = file_digest(file), bytearray(file.read_bytes())
    layer = [op for op in load(file).ops if op.kind == "Gemm"][4]
    weights = load(file)[layer.inputs[1]].data
    assert weights is not None
    place = bytes(data).index(weights.tobytes())
    data[place + 5] ^= 0x40
    file.write_bytes(data)
    manifest = tmp_path / "parts" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(before, file_digest(file)))
    report = check(SMALL, manifest, samples=2)
    assert report.verdict == "not equal"
    wrong = [item.output for item in report.operators if item.verdict == "unexplained"]
    assert wrong == [layer.outputs[0]]
    assert any("the region 'tflite-same_0' of tflite-same (00_tflite-same_0.tflite)" in text for text in report.problems), report.problems


@pytest.mark.onnxruntime
@pytest.mark.parametrize("target", ["ort-x86", "tensorrt", "tflite"])
def test_that_parts_compute_on_real_data_is_known(target: str, tmp_path: Path) -> None:
    """LiteRT rounds the data of dynamic range; parts say of themselves that they do not, and the whole says it too."""
    model = FIXTURES / "keras" / "keras_transposed_dynamic.tflite"
    partition(model, target, split=tmp_path / "parts")
    report = check(model, tmp_path / "parts" / "manifest.json", samples=2, per_op=True)
    assert report.verdict == "passed", report.problems
    assert target == "tflite" or "dynamic range" in {item.verdict for item in report.operators}


@pytest.mark.torch
def test_a_user_chooses_what_runs_the_parts(tmp_path: Path) -> None:
    """By their formats, and for each at most one; what runs code of files is for sources alone."""
    place = Path(partition(SMALL, ["tflite-micro"], split=tmp_path / "parts").files[0])

    def run_by(kernels: str) -> list[str]:
        return [part.runtime for part in PartitionModel(ModelFile(place, kernels)).manifest.parts]

    assert run_by("parts") == ["litert:default"]
    assert run_by("parts,litert:reference,onnxruntime:unoptimized") == ["litert:reference"]
    report = check(SMALL, place, samples=1, kernels="litert:reference", per_op=True)
    assert report.kernels == ("litert:reference", "partition:parts,litert:reference")
    assert report.verdict == "passed" and {item.verdict for item in report.operators} == {"equal"}, report.problems
    with refused(OptionError, "ambiguous-kernels", holds=("litert:default", "litert:reference")):
        check(SMALL, place, samples=1, kernels="litert:default,litert:reference")
    modules = Path(partition(SMALL, ["torch-modules"], split=tmp_path / "modules").files[0])
    before = [part.runtime for part in read_manifest(modules).parts]
    assert [part.runtime for part in PartitionModel(ModelFile(modules, "parts,torch:trusted")).manifest.parts] == before


@pytest.mark.onnxruntime
@pytest.mark.torch
@pytest.mark.parametrize(
    ("model", "rule"),
    [
        ("recurrent/gru_float.tflite", "files of the format torch hold no functions"),
        ("tflm_seanet_conv_int16x8.tflite", "quantized tensors have 8 bits or are int32"),
    ],
)
def test_what_a_format_cannot_hold_stays_outside(model: str, rule: str, tmp_path: Path) -> None:
    """It was found when the file was written, and ended the split."""
    found = partition(FIXTURES / model, "torch-modules", split=tmp_path / "parts")
    assert rule in {said for item in found.outside for said in item.reasons.values()}
    report = check(FIXTURES / model, found.files[0], samples=1)
    assert report.verdict == "passed", report.problems


@pytest.mark.onnxruntime
@pytest.mark.torch
def test_what_a_writer_refuses_goes_back_to_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's LSTM has no cell_clip, which the target's rules do not know: of a sequence that is too long for its steps to stand in the
    graph one by one it is outside then, and the network is split all the same."""
    monkeypatch.setattr(formulas, "MOST_STEPS", 1)
    model = FIXTURES / "recurrent" / "lstm_float.tflite"
    assert "LSTM" in {kind for region in partition(model, "torch-x86").regions for kind in region.operators}
    found = partition(model, "torch-x86", split=tmp_path / "parts")
    assert "LSTM" not in {kind for region in found.regions for kind in region.operators}
    reasons = [dict(item.reasons)["torch-x86"] for item in found.outside if item.kind == "LSTM"]
    assert reasons and all("LSTM cannot be written to PyTorch: cell_clip" in said for said in reasons)
    report = check(model, found.files[0], samples=1)
    assert report.verdict == "passed", report.problems


def test_a_target_whose_regions_cannot_be_files(tmp_path: Path) -> None:
    with refused(OptionError, "target-of-other-format"):
        partition(SMALL, "mnn", split=tmp_path / "parts")
    assert not list(tmp_path.iterdir()) and partition(SMALL, "mnn").regions


@pytest.mark.torch
@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("coco_ssd_mobilenet_v1_uint8.tflite", "tflite"),  # a Concat to one quantization, which LiteRT's kernels round coarsely
        ("torch/perceptron/dynamic_full_frozen.pt", "tflite-micro"),  # data quantized by rows, and by the whole tensor in the source
    ],
)
def test_parts_are_judged_by_what_runs_them(model: str, target: str, tmp_path: Path) -> None:
    partition(FIXTURES / model, target, split=tmp_path / "parts")
    report = check(FIXTURES / model, tmp_path / "parts" / "manifest.json", samples=1)
    assert report.verdict == "passed", report.problems
