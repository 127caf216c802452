# make test      installs what is missing, builds the operators, runs the tests
# make demo      the same environment, then examples/train.py
# make bench     the same environment, then the evaluation of the DF-GNN paper into runs/bench (BENCH_ARGS="--quick")
# make lint      ruff, mypy, clang-format; `make format` applies what they can mend
# make kernels   compiles cuda/ with nvcc alone: neither torch nor a GPU is needed
# make cuda-dev  build/cuda211/libdfgnn.so for KERNEL_ARCH, against a CUDA build of torch in VENV, which is left as it is
#                (both take cmake from the PATH)
# make clean     removes what was built, and .venv where that is VENV
#
# PYTHON  the Python to start from (default python3). If it has torch, that torch is used; else TORCH is installed.
# VENV    the virtual environment that is created for it, or an existing one (default .venv); VENV=system: none,
#         what is missing is installed into PYTHON itself.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
KERNEL_ARCH ?= 9.0a
PYTEST_ARGS ?= -q -n 2
BENCH_ARGS ?=

ifeq ($(VENV),system)
  PY := $(PYTHON)
  STAMPS := build/stamps
else
  PY := $(VENV)/bin/python
  STAMPS := $(VENV)/stamps
  export PATH := $(abspath $(VENV))/bin:$(PATH)
endif

# Says whose library lies beside it, as there is one for all environments: after another one's, it is built again.
BUILT := pyg_dfgnn/lib/built-for-$(subst /,-,$(VENV))

# Prebuilt wheels of torch_scatter and torch_sparse, which otherwise compile for ten minutes.
WHEELS := $(wildcard ../shared/wheels)

SOURCES := CMakeLists.txt setup.py pyproject.toml $(wildcard cmake/* cuda/* pyg_dfgnn/csrc/*.* pyg_dfgnn/csrc/*/*)
CXX_FILES := $(filter %.h %.cuh %.cpp %.cu %.inc,$(SOURCES)) $(wildcard pyg_dfgnn/bench/*.cu examples/libtorch/*.cpp)

JOBS := $(or $(MAX_JOBS),$(shell nproc))
export CMAKE_GENERATOR ?= $(if $(shell command -v ninja),Ninja,Unix Makefiles)

.PHONY: test demo bench build lint format kernels cuda-dev clean
.DELETE_ON_ERROR:

test: $(STAMPS)/test
	$(PY) -m pytest $(PYTEST_ARGS)

demo: build
	$(PY) examples/train.py

bench: build
	$(PY) -m pyg_dfgnn.bench run $(BENCH_ARGS)

build: $(BUILT)

$(STAMPS)/torch:
ifneq ($(VENV),system)
	test -x $(PY) || $(PYTHON) -m venv $$($(PYTHON) -c "import torch" 2>/dev/null && echo --system-site-packages) $(VENV)
endif
	$(PY) -c "import torch" 2>/dev/null || $(PY) -m pip install "$(TORCH)"
	$(PY) -m pip install "setuptools>=77" wheel cmake ninja
	mkdir -p $(@D) && touch $@

# Without isolation, so that all that is compiled here is compiled against the installed torch.
INSTALL := -m pip install --no-build-isolation $(addprefix --find-links ,$(WHEELS)) -e

$(BUILT): $(STAMPS)/torch $(SOURCES)
	$(PY) $(INSTALL) ".[demo]"
	rm -f pyg_dfgnn/lib/built-for-* && touch $@

$(STAMPS)/test: pyproject.toml | $(BUILT)
	$(PY) $(INSTALL) ".[test,lint]"
	touch $@

lint: $(STAMPS)/test
	ruff check
	ruff format --check
	mypy
	clang-format --dry-run -Werror $(CXX_FILES)

format: $(STAMPS)/test
	ruff check --fix
	ruff format
	clang-format -i $(CXX_FILES)

kernels:
	TORCH_CUDA_ARCH_LIST="$(KERNEL_ARCH)" cmake -S . -B build/kernels -DDFGNN_KERNELS_ONLY=ON -DDFGNN_WERROR=ON
	cmake --build build/kernels --parallel $(JOBS)

cuda-dev:
	TORCH_CUDA_ARCH_LIST="$(KERNEL_ARCH)" cmake -S . -B build/cuda211 -DWITH_CUDA=ON -DPython_EXECUTABLE=$(PY)
	cmake --build build/cuda211 --parallel $(JOBS)

clean:
	rm -rf build dist *.egg-info pyg_dfgnn/lib $(STAMPS) $(filter .venv,$(VENV))
