"""Pages: what stands on them, that a model's names stay text, and that a browser shows them without loading or running anything else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

import qconvert
from qconvert.calibration.driver import run_calibration
from qconvert.errors import FileAccessError, OptionError
from qconvert.reports.histograms import bars_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODEL = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BAD = [
    "</script><script>document.title='hacked'</script>",
    '"><img src=x onerror="document.title=\'hacked\'">',
    "{{ 7 * 7 }}",
    "a\u2028b\u202e",
]


class Read(HTMLParser):
    """Elements with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, before = self.found[-1]
            self.found[-1] = (tag, attributes, before + data)

    def texts(self, tag: str) -> list[str]:
        return [text.strip() for name, _, text in self.found if name == tag]


def document(text: str) -> dict[str, Any]:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index, no-any-return]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a check of a whole network."""
    folder = tmp_path_factory.mktemp("pages")
    qconvert.convert(MODEL, folder / "model.onnx")
    report = qconvert.check(MODEL, folder / "model.onnx", per_op=True, samples=1)
    qconvert.html_report(report, folder / "page.html")
    return (folder / "page.html").read_text()


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_a_check_says_its_verdict_and_shows_both_graphs(page: str) -> None:
    read, found = Read(page), document(page)
    (title,) = read.texts("h1")
    assert title == f"passed: model.onnx vs. {MODEL.name}" and "16 of 16 operators equal" in read.texts("p")[0]
    source, result = found["graphs"]
    assert [one["title"] for one in found["graphs"]] == ["source", "result"]
    kinds = [op["kind"] for op in source["parts"][0]["ops"]]
    assert kinds == [op.kind for op in qconvert.load(MODEL).ops] and {op["mark"] for op in source["parts"][0]["ops"]} == {"equal"}
    assert "Requantize" in [op["kind"] for op in result["parts"][0]["ops"]]
    assert len(found["plot"]["names"]) == len(kinds) and not any(found["plot"]["largest"])
    first = source["parts"][0]["tensors"][source["parts"][0]["ops"][0]["out"][0]]
    assert first["type"] == "int8" and sum(first["bars"]["counts"]) == 2 * 32 * 32 * 16  # of two inputs that were run
    assert first["bars"]["ends"] == [-128, 127]
    cells = read.texts("td")
    assert "assign_layout" in cells and any(hashlib.sha256(MODEL.read_bytes()).hexdigest() in cell for cell in cells)


@pytest.mark.formats
def test_the_policy_allows_what_the_page_has_and_nothing_else(page: str) -> None:
    policy = next(
        item["content"] for tag, item, _ in Read(page).found if tag == "meta" and item.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
    for tag in ("script", "style"):
        inner = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert len(inner) == 1
        digest = base64.b64encode(hashlib.sha256(inner[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    asked = [
        value for _, item, _ in Read(page).found for key, value in item.items() if key in ("src", "href", "style") or key.startswith("on")
    ]
    assert asked == []


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model all of whose names are attacks."""
    folder = tmp_path_factory.mktemp("hostile")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in BAD[:2]]
    nodes = [
        helper.make_node("Add", [BAD[0], BAD[2]], [BAD[3]], name=BAD[1], doc_string=BAD[0]),
        helper.make_node("Neg", [BAD[3]], [BAD[1]]),
    ]
    weights = numpy_helper.from_array(np.arange(4, dtype=np.float32), BAD[2])
    model = helper.make_model(helper.make_graph(nodes, BAD[0], values[:1], values[1:], [weights]), ir_version=8)
    model.opset_import[0].version = 17
    model.metadata_props.add(key=BAD[0], value=BAD[1])
    onnx.save(model, folder / "m.onnx")
    qconvert.html_report(folder / "m.onnx", folder / "page.html")
    return folder / "page.html"


@pytest.mark.onnxruntime
def test_names_stay_text(hostile: Path) -> None:
    text = hostile.read_text()
    read = Read(text)
    assert [tag for tag, _, _ in read.found].count("script") == 2 and "img" not in [tag for tag, _, _ in read.found]
    assert any(BAD[1] in cell for cell in read.texts("td")) and not any(cell.strip() == "49" for cell in read.texts("td"))
    assert "\u202e" not in text and "\u2028" not in text
    names = [tensor["name"] for tensor in document(text)["graphs"][0]["parts"][0]["tensors"]]
    assert BAD[0] in names and BAD[2] in names


@pytest.mark.formats
@pytest.mark.end_to_end
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to show pages")
@pytest.mark.parametrize("which", ["page", "hostile"])
def test_a_browser_draws_it_and_runs_nothing_else(which: str, page: str, hostile: Path, tmp_path: Path) -> None:
    place = hostile if which == "hostile" else tmp_path / "page.html"
    if which == "page":
        place.write_text(page)
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--virtual-time-budget=5000",
               "--enable-logging=stderr", "--dump-dom", place.as_uri()]  # fmt: skip
    for _ in range(3):  # a browser on a busy machine may give up before anything is drawn
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=120)
        if "drawn" in done.stdout[:200]:
            break
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    drawn = Read(done.stdout)
    assert any(tag == "html" and "drawn" in str(item.get("class")) for tag, item, _ in drawn.found), done.stderr[-2000:]
    assert "hacked" not in drawn.texts("title") and "img" not in [tag for tag, _, _ in drawn.found]
    count = len([1 for tag, item, _ in drawn.found if tag == "g" and str(item.get("class")).startswith("node")])
    assert count == (4 if which == "hostile" else sum(len(one["parts"][0]["ops"]) + 2 for one in document(page)["graphs"]))


@pytest.mark.formats
@pytest.mark.end_to_end
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to print pages")
def test_folded_tables_are_printed(page: str, tmp_path: Path) -> None:
    """As many sheets as with every table open, and more than without them."""

    def sheets(text: str) -> int:
        (tmp_path / "page.html").write_text(text)
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
                   "--virtual-time-budget=5000", f"--print-to-pdf={tmp_path / 'page.pdf'}", (tmp_path / "page.html").as_uri()]  # fmt: skip
        subprocess.run(list(map(str, command)), capture_output=True, check=True, timeout=120)
        return len(re.findall(rb"/Type /Page\b", (tmp_path / "page.pdf").read_bytes()))

    folded = re.compile(r"<details>.*?</details>", re.S)
    assert len(folded.findall(page)) == 4
    whole = sheets(page.replace("<details>", "<details open>"))
    assert abs(sheets(page) - whole) <= 1  # whether the plots are drawn by then
    assert whole > sheets(folded.sub("", page)) + 4


@pytest.mark.onnxruntime
def test_pages_of_a_conversion_and_of_a_calibration(tmp_path: Path) -> None:
    report = qconvert.convert(MODEL, tmp_path / "model.onnx")
    qconvert.html_report(report, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert Read(text).texts("h1")[0].startswith(f"{MODEL.name} became model.onnx: all scales and integers are the source's; ")
    assert "operators run on integers" in text
    digits = FIXTURES / "digits"
    found = run_calibration(digits / "float.onnx", np.load(digits / "test.npz")["images"][:4], method="percentile")
    qconvert.html_report(found, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert len(document(text)["histograms"]) == len(found.tensors)
    low, high = document(text)["histograms"][0]["bars"]["ends"]
    assert (low, high) == pytest.approx(found.tensors[0].range)


@pytest.mark.formats
def test_what_cannot_be_read_is_left_out_and_said(tmp_path: Path) -> None:
    report = qconvert.convert(MODEL, tmp_path / "model.onnx")
    (tmp_path / "model.onnx").write_bytes(b"no model")
    qconvert.html_report(report, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert [one["title"] for one in document(text)["graphs"]] == ["source"]
    assert any("The graph of the result is not shown: " in said for said in Read(text).texts("p"))


@pytest.mark.formats
def test_only_pages_are_replaced(tmp_path: Path) -> None:
    graph = qconvert.load(FIXTURES / "tiny_ad_toycar_int8.tflite")
    page = tmp_path / "page.html"
    qconvert.html_report(graph, page)
    qconvert.html_report(graph, page)
    page.write_text("<p>mine</p>")
    with refused(FileAccessError, "file-exists"):
        qconvert.html_report(graph, page)
    qconvert.html_report(graph, page, force=True)
    with refused(OptionError, "unknown-suffix"):
        qconvert.html_report(graph, tmp_path / "page.onnx")
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.formats
def test_histograms_count_over_the_quantization() -> None:
    quantization = qconvert.Quantization(np.array([0.5], np.float32), np.array([3]))
    bars = bars_of(qconvert.Tensor("x", "int8", (4,), None, quantization), np.array([-128, -128, 0, 127], np.int8))
    assert bars is not None and (bars.low, bars.high, bars.used, bars.stored) == (-128.5, 127.5, 3, True)
    assert len(bars.counts) == 64 and (bars.counts[0], bars.counts[32], bars.counts[63]) == (2, 1, 1)
    real = bars_of(qconvert.Tensor("x", "float32", (4,)), np.array([np.nan, np.inf, 1, 3], np.float32))
    assert real is not None and (real.low, real.high, sum(real.counts), real.ends) == (1, 3, 2, ())
    assert bars_of(qconvert.Tensor("x", "float32", (2,)), np.full(2, np.nan, np.float32)) is None
