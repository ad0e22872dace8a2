# `make demo` and `make test` are all that a new user needs: each makes the environment, installs and runs.

PYTHON ?= python3
VENV ?= .venv
# What is installed as PyTorch, first of all; empty to use one that the environment has already.
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
# One process per core, but no more than memory is likely to hold.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal
# The package with what one target needs beside it: the first of these compiles the kernels.
FOR := $(VENV)/.installed-
# When the compiled kernels were last found to be newer than what they are made of, or built.
LIBRARY := $(VENV)/.library
LIBRARY_SOURCES := setup.py tools/compilers.py \
  $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h)

.PHONY: help demo test test-all test-tools test-onnx-versions test-tritons fuzz sanitize coverage lint bench gpu gpu-prepare docs examples wheel wheels clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(FOR)demo $(LIBRARY)  ## what torch.nn's pools cannot do, and a small CNN trained with both; demo.png, beyond_torch.png
	$(BIN)/python examples/beyond_torch.py
	$(BIN)/python examples/digits.py

test: $(FOR)test $(LIBRARY)  ## the everyday tests, then the Triton kernels under Triton's interpreter; TESTS=tests/test_window.py one file
	$(PYTEST) -m "not slow" $(TESTS)
	$(if $(TESTS),,TRITON_INTERPRET=1 $(PYTEST) -m "not slow" tests/kernels)

test-all: $(FOR)test $(LIBRARY)  ## every test, with thorough property tests; the kernels' slow ones take 25 minutes of a core
	$(PYTEST) --hypothesis-profile=thorough
	TRITON_INTERPRET=1 $(PYTEST) tests/kernels
	TRITON_INTERPRET=1 $(PYTEST) -m "not slow" --sample 24 tests/operators

test-tools: $(FOR)test $(FOR)tools $(LIBRARY)  ## other people's tools on converted models
	$(BIN)/python -m pytest tests/test_tools.py

TRITONS := 3.6.0 3.7.0 3.8.0 3.9.0

test-tritons: $(FOR)test $(LIBRARY) $(TRITONS:%=.tritons/%)  ## the kernels as each supported Triton interprets, compiles and lays them out; a quarter of an hour each
	for version in $(TRITONS); do export PYTHONPATH=.tritons/$$version; \
	  TRITON_INTERPRET=1 $(PYTEST) -m "not slow" tests/kernels && \
	  $(PYTEST) -m "not slow" tests/kernels tests/backends/test_triton.py || exit 1; done

.tritons/%: | $(FOR)test
	$(BIN)/python -m pip install --no-deps --target $@ triton==$*

ONNX_RUNTIMES := 1.20.1 1.22.1 1.24.4

test-onnx-versions: $(FOR)test $(LIBRARY) $(ONNX_RUNTIMES:%=.onnxruntime/%)  ## every exported form in four versions of ONNX Runtime, each opset; twenty minutes of two cores
	$(BIN)/python -m pip install --no-deps --upgrade --target .onnxruntime/newest onnxruntime
	$(PYTEST) tests/test_onnx_versions.py

.onnxruntime/%: | $(FOR)test
	$(BIN)/python -m pip install --no-deps --target $@ onnxruntime==$*

fuzz: $(FOR)test $(LIBRARY)  ## 20,000 random requests through every property; REQUESTS=1000 fewer
	$(PYTEST) --hypothesis-profile=fuzz tests/test_properties.py tests/test_neighbours.py

# GCC or Clang with their sanitizers; a quarter of an hour on two cores, most of it compiling.
sanitize: $(FOR)test  ## the CPU kernels under the sanitizers of addresses, undefined behaviour and threads
	$(BIN)/python tools/sanitize.py

coverage: $(FOR)test $(LIBRARY)  ## branch coverage of the everyday tests, the interpreter's included; 95 % at least
	$(PYTEST) -m "not slow" --cov --cov-report= --cov-fail-under=0
	TRITON_INTERPRET=1 $(PYTEST) -m "not slow" --cov --cov-append --cov-report= --cov-fail-under=0 tests/kernels
	$(BIN)/python -m coverage report

lint: $(FOR)test  ## style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h tools/*.cpp)
	$(BIN)/mypy
	$(BIN)/mypy --strict --follow-imports=silent tests/user_code.py

bench: $(FOR)benchmark $(LIBRARY)  ## measure single calls, calls of real models and whole networks beside PyTorch; an hour and a half
	$(BIN)/python -m benchmarks rows --out benchmarks/results/cpu.json
	$(BIN)/python -m benchmarks models --out benchmarks/results/models.json
	$(BIN)/python -m benchmarks calls --out benchmarks/results/calls.json
	ATEN_CPU_CAPABILITY=avx2 $(BIN)/python -m benchmarks calls --sample 2 --threads 1 --out benchmarks/results/calls_avx2.json
	$(BIN)/python -m benchmarks report

# The machine's own Python, PyTorch and Triton are used: nothing is installed where there may be no network.
gpu:  ## tests and benchmarks on a CUDA or ROCm GPU, in under six minutes; RUN=2 the second half
	$(PYTHON) -m benchmarks gpu --run $(or $(RUN),1)

# WITH names a Python that has the Triton of the GPU's machine; it needs no PyTorch.
gpu-prepare:  ## compile for make gpu beforehand, without a GPU, into .gpu-cache
	$(PYTHON) -m benchmarks gpu --prepare $(if $(WITH),--python $(WITH))

docs: $(FOR)docs  ## draw the pictures and build the documentation into site/; a broken link is an error
	$(BIN)/python docs/pictures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

examples: $(FOR)test $(LIBRARY)  ## every example in full, a few minutes
	for example in examples/*.py; do echo "== $$example"; $(BIN)/python $$example || exit 1; done

wheel: $(FOR)test  ## build this platform's wheel into dist/ as it is handed out, with zig, and check it
	$(BIN)/python tools/wheels.py --own

wheels: $(FOR)test  ## wheels for Linux, Windows and macOS into dist/, built with zig and checked; ten minutes
	$(BIN)/python tools/wheels.py

clean:  ## remove what was built; the environment stays
	rm -rf build dist site .onnxruntime demo.png beyond_torch.png dilated_average.png *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The stamp makes the second run instant; it is older than a changed pyproject.toml, which installs again.
$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or newer is needed: name one as in  make PYTHON=/usr/bin/python3.12 demo'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo 'Python could not make an environment; Debian and Ubuntu have that part in the package python3-venv'; exit 1; }
	$(BIN)/python -m pip install $(if $(TORCH),"$(TORCH)") "setuptools>=77"
	touch $@

$(FOR)%: $(VENV)/.torch pyproject.toml setup.cfg
	$(BIN)/python -m pip install -e ".[$*]"
	touch $@

# Where a compiler is but no library, it could not be compiled.
$(LIBRARY): $(LIBRARY_SOURCES) | $(VENV)/.torch
	$(BIN)/python setup.py --quiet build_ext --inplace
	@ls kernels/cpu_*.* >/dev/null 2>&1 || ! $(BIN)/python tools/compilers.py
	touch $@
