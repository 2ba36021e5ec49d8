# `make` lists the targets. The virtual environment is made on first use; a stamp in it stands for
# each set of dependencies, so nothing is installed twice until pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run llm serve distributed onnx test test-all test-slow test-gpu fuzz lint bench docs wheel clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

run: $(VENV)/.installed ## train a network to read handwritten digits
	$(BIN)/genesis train digits

llm: $(VENV)/.installed-llm ## train a small language model, and let it write
	$(BIN)/python examples/llm.py --steps 250

serve: $(VENV)/.installed-serve python-llama ## serve a small language model, with a page to chat on
	$(BIN)/genesis serve python-llama

python-llama: | $(VENV)/.installed-serve
	$(BIN)/python examples/llm.py --steps 100 --output $@

distributed: $(VENV)/.installed-distributed ## train on two processes, divided in three ways
	$(BIN)/genesis launch -n 2 examples/distributed.py

onnx: $(VENV)/.installed-onnx ## train a network, write it to an ONNX file, run that and train on
	$(BIN)/python examples/exchange.py

# Tests of one file share what they compile, so a file is run by one process.
test: lint ## check everything: style, types, layers, tests
	$(BIN)/python -m pytest --quiet --numprocesses auto --dist loadfile

test-all: test test-slow ## everything that needs no GPU

test-slow: $(VENV)/.installed-dev ## run the tests that `test` leaves out
	$(BIN)/python -m pytest --quiet --numprocesses auto --dist load -m slow

# Most of the time goes into compiling, so every file has a process of its own.
# Files that run on a GPU, the slowest in two halves, first; all at once, since most of it is compiling.
ON_GPU := tests/nn/test_attention.py tests/ndarray/test_scatter.py tests/nn/test_optim.py \
	tests/nn/test_nn_layers.py tests/ndarray/test_sorting.py
FOR_GPU := tests/backends/test_gpu_numbers.py tests/compiler/test_gpu_models.py \
	tests/backends/test_cuda_runtime.py tests/backends/test_gpu_runtime.py

test-gpu: ## run the tests that need an NVIDIA GPU, and some others there, in the current environment
	{ printf -- '--device cuda tests/ndarray/test_operator_sweep.py -k "%selementwise"\n' "" "not "; \
	  printf -- 'tests/backends/test_gpu_library.py -k "not interpreter and %srows_are_sorted"\n' "" "not "; \
	  printf -- '--device cuda -k "not one_kernel" %s\n' $(ON_GPU); \
	  printf -- '-k "not interpreter" %s\n' $(FOR_GPU); } | xargs -P 12 -L 1 $(PYTHON) -m pytest --quiet

# Each tester is a module of `tests` that takes a seed and how many programs of each kind to draw.
TESTERS := random_programs random_jit random_files
SEED ?= 0
COUNT ?= 2000

fuzz: $(VENV)/.installed-dev ## run random programs against NumPy and PyTorch, and damaged files (SEED=0 COUNT=2000)
	for tester in $(TESTERS); do \
	    $(BIN)/python -m tests.$$tester --seed $(SEED) --count $(COUNT) || exit 1; done

lint: $(VENV)/.installed-dev ## check style, types and layers only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev ## time the CPU backend side by side with PyTorch
	for page in cpu operators convolutions decode; do \
	    test ! -f benchmarks/$$page.py || $(BIN)/python -m benchmarks.$$page || exit 1; done

docs: $(VENV)/.installed-docs ## build the site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

wheel: $(BIN)/pip ## build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove what the targets made, except the virtual environment
	rm -rf dist site digits.safetensors python-llama .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find benchmarks examples genesis tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# pip is what `venv` makes last: where Debian's python3-venv is missing it is not there.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("Genesis needs Python 3.11 or later: make PYTHON=..." \
	    if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-llm: pyproject.toml | $(BIN)/pip
	$(PIP) --editable '.[llm]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-serve: pyproject.toml | $(BIN)/pip
	$(PIP) --editable '.[serve]'
	touch $(VENV)/.installed $(VENV)/.installed-llm $@

$(VENV)/.installed-distributed: pyproject.toml | $(BIN)/pip
	$(PIP) --editable '.[distributed]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-onnx: pyproject.toml | $(BIN)/pip
	$(PIP) --editable '.[onnx]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/pip
	$(PIP) --editable '.[dev]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/pip
	$(PIP) --editable '.[docs]'
	touch $(VENV)/.installed $@
