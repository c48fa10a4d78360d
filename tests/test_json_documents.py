"""What commands print with --json fits the published schema, docs/json.schema.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from test_cli import run

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"
SCHEMA = json.loads((ROOT / "docs" / "json.schema.json").read_text())


@pytest.mark.repository
def test_the_schema_is_made_from_the_code() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "make_schemas.py", "--check"], capture_output=True, check=False)
    assert done.returncode == 0, "python docs/make_schemas.py makes it"


@pytest.mark.end_to_end
def test_documents_of_commands_fit_it(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    scales = tmp_path / "scales.json"
    commands = {
        "convert": ["convert", MODEL, model],
        "check": ["check", MODEL, model, "--per-op"],
        "audit": ["audit", MODEL, "--target", "ort-x86"],
        "roundtrip": ["roundtrip", MODEL, "qgraph"],
        "diff": ["diff", MODEL, model],
        "error": ["convert", MODEL, tmp_path / "no" / "model.onnx"],
        "extract-scales": ["extract-scales", MODEL, scales],
        "formats": ["formats"],
        "partition": ["partition", MODEL, "--target", "tflite"],
        "passes": ["passes"],
        "plugins": ["plugins"],
        "run": ["run", MODEL],
    }
    for name, words in commands.items():
        done = run(*words, "--json")
        document = json.loads(done.stdout)
        assert document["schema"] == f"qconvert/{name}/1", done.stderr
        jsonschema.validate(document, SCHEMA)
    document["inputs"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)
