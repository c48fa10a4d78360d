PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := build/demo
MODEL := fixtures/tiny_resnet_cifar10_int8.tflite
FUZZ_SECONDS ?= 3600
ZOO ?= build/zoo
# PyTorch without GPU libraries (190 MB, not 3 GB) is not in the usual index for Linux.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# The tests start some hundred commands; where bytecode is not written, each of them compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

TOOLS := build/tools
TOOLS_STAMP := $(TOOLS)/.installed

.PHONY: demo test test-all lint slow fuzz bench zoo plugins site look dist clean

demo: $(STAMP)
	mkdir -p $(DEMO)
	$(BIN)/qconvert tflite2onnx $(MODEL) $(DEMO)/resnet.onnx --force
	$(BIN)/qconvert check $(MODEL) $(DEMO)/resnet.onnx --per-op
	$(BIN)/qconvert inspect $(DEMO)/resnet.onnx

# Core, formats and a cross-section of what needs a runtime; it says what it left out (tests/tiers.py).
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --quick

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The few tests that take half a minute each.
slow: $(STAMP)
	QCONVERT_SLOW=1 $(BIN)/python -m pytest -m slow

# Every pass on many random graphs, and every reader on many damaged files; the suite tries a few of them.
fuzz: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz --count 100000
	QCONVERT_EXAMPLES=1000 $(BIN)/python -m pytest -n 2 tests/passes/test_random_graphs.py
	QCONVERT_NEW_EXAMPLES=1 $(BIN)/python -m pytest -n 2 tests/test_bad_input.py $(shell grep -rl "import given" tests)
	PYTHONPATH=tests $(BIN)/python tests/strange_conversions.py $(FUZZ_SECONDS)

bench: $(STAMP)
	$(BIN)/python benchmarks/tflite2onnx.py

# Every model of a folder both ways (fixtures/README.md says how to make them); the suite converts a few small ones.
zoo: $(STAMP)
	$(BIN)/python fixtures/zoo/run.py $(ZOO) --jobs 2 --coverage docs/measured/coverage.md
	QCONVERT_ZOO=1 $(BIN)/python -m pytest -q tests/targets/test_tensorrt.py -k whole_models

# The documentation as a site, in build/site; links to nowhere are errors. `make look` opens every page of it in Chromium.
site: $(TOOLS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/mkdocs build --strict --quiet

look: site
	$(TOOLS)/bin/python docs/look.py build/site

# Wheel and sdist in build/dist, each installed and tried in a fresh environment with every Python that is there.
dist: $(TOOLS_STAMP)
	$(TOOLS)/bin/python tests/distribution.py build/dist

# Each package in plugins/ by itself: an environment with qconvert, the plugin and its real tool, its tests, and mypy.
# `make plugin-qconvert-gguf` is one of them.
PLUGIN_FROM := --quiet --constraint constraints.txt
PLUGINS := $(notdir $(wildcard plugins/*))
plugins: $(PLUGINS:%=plugin-%)

plugin-%:
	test -x build/plugins-venv/$*/bin/python || $(PYTHON) -m venv build/plugins-venv/$*
	build/plugins-venv/$*/bin/python -m pip install $(PLUGIN_FROM) --editable . --editable 'plugins/$*[test]' 2>/dev/null || \
		build/plugins-venv/$*/bin/python -m pip install $(PLUGIN_FROM) --extra-index-url $(TORCH_INDEX) --editable . --editable 'plugins/$*[test]'
	build/plugins-venv/$*/bin/python -m pytest -q plugins/$*/tests
	build/plugins-venv/$*/bin/python -m mypy --config-file plugins/$*/pyproject.toml plugins/$*/$(subst -,_,$*)

clean:
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --constraint constraints.txt --extra-index-url $(TORCH_INDEX) torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

$(TOOLS_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --upgrade pip
	$(TOOLS)/bin/python -m pip install --quiet --constraint constraints.txt --group docs --group release
	touch $(TOOLS_STAMP)
