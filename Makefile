# Every target sets up what it needs in .venv; nothing but Python 3.10+ and make has to be there.
# PYTHON=python3.12 chooses the interpreter (run `make clean` first), QUERY="..." asks the demo a question.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
# Those that need no package beside the extras whose versions constraints-lowest.txt has. Tests of pages build processors
# that are new in transformers; one of a trainer asserts that six random steps are better than none.
LOWEST_TESTS := $(addprefix tests/,cli/test_cli_rerank.py cli/test_cli_train.py data evaluation kernels losses models \
	modules rank retrieve/test_retriever.py scores test_embeddings.py training utils) \
	$(addprefix --ignore=tests/models/,test_images.py test_untrusted.py checkpoints/test_pages.py) \
	--deselect=tests/evaluation/test_evaluator.py::test_in_a_trainer_it_chooses_the_best_checkpoint
PLATFORMS ?= manylinux_2_17_x86_64 manylinux_2_17_aarch64 macosx_11_0_arm64 macosx_11_0_x86_64 win_amd64
# What an editable install is made of: it compiles the kernels.
INSTALLED := pyproject.toml hatch_build.py $(wildcard csrc/*)
BENCHMARKS := $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))

# As many processes as cores, four at most for their memory: each imports torch and loads models. WORKERS=0 for one alone.
WORKERS ?= logical
PYTEST = $(if $(ISA),.ci/isa $(ISA) )$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo kernels wheels test test-all test-lowest soak lint types docs bench clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

demo: $(VENV)/installed-demo ## search the documentation of Python itself (QUERY="..." for a question of your own)
	@$(BIN)/latelier demo $${QUERY:+"$$QUERY"}

kernels: $(VENV)/bin/python ## compile the kernels of csrc again (every other target does it where they have changed)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check hatchling ziglang
	@$(BIN)/python hatch_build.py

wheels: $(VENV)/bin/python ## build the wheels of all platforms, and the source distribution, into dist/
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	@$(BIN)/python -m build --sdist
	@for platform in $(PLATFORMS); do LATELIER_PLATFORM=$$platform $(BIN)/python -m build --wheel || exit 1; done

test: $(VENV)/installed-dev ## run the tests and all examples (TESTS="..." some files, ISA=avx512vnni, avx2 or generic forces instructions)
	@$(PYTEST) $(TESTS)

test-all: $(VENV)/installed-dev $(VENV)/installed-all ## the same with every extra installed, and the slow tests too (TESTS="-m slow" for these alone)
	@$(PYTEST) -m "" $(TESTS)

test-lowest: $(LOWEST)/installed ## run the tests with the lowest versions that pyproject.toml allows, in an environment of its own (PYTHON=python3.10; on Linux x86-64, 6 GB of CUDA come with torch 2.6)
	@$(LOWEST)/bin/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist worksteal $(or $(TESTS),$(LOWEST_TESTS))

soak: $(VENV)/installed-dev ## kill, fork, damage files and fill disks by the thousands (SCALE=0.05 for a small dose)
	@PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m soak --scale $${SCALE:-1} $(SOAK)

lint: $(VENV)/installed-dev ## check style, formatting and the house rules
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --no-cache --check .
	@$(BIN)/python -m pytest --quiet tests/test_house.py

types: $(VENV)/installed-dev ## check the types
	@$(BIN)/mypy

docs: $(VENV)/installed-docs ## build the documentation into site/, warnings being errors
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --builder html --doctree-dir build/doctrees docs site

bench: $(VENV)/installed-benchmarks ## run the benchmarks
	@for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) $(LOWEST) build dist site jupyter_execute .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed, this is %s; choose one with PYTHON=python3.x." % sys.version.split()[0])'
	@$(PYTHON) -m venv --upgrade-deps $(VENV) || { rm -rf $(VENV); exit 1; } # half an environment would hide the cause next time; the pip of Python 3.11 takes twice as long

$(LOWEST)/installed: $(INSTALLED) constraints-lowest.txt
	@$(PYTHON) -m venv --upgrade-deps $(LOWEST)
	@echo "Installing the lowest versions into $(LOWEST) ..."
	@$(LOWEST)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints-lowest.txt --editable ".[train,eval,irds,parquet,images,serve,demo]" httpx hypothesis pytest "pytest-xdist[psutil]"
	@touch $@

# One stamp per extra, older than what it is made of when the dependencies or the kernels have changed since.
$(VENV)/installed-%: $(INSTALLED) constraints.txt | $(VENV)/bin/python
	@echo "Installing latelier[$*] into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$*]"
	@touch $@
