# Targets say what they do after "##"; "make" alone prints them.
PYTHON ?= python3
PYTHON_MIN := 3.11
EXTRAS := docs,lint,notebooks,test
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock
ESTIMATOR := $(BIN)/python -m estimator_utils

.PHONY: help
help:  ## print this
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

.PHONY: reproduce
reproduce: .venv/ready  ## run every notebook headless into build/DATASET/, print the headline [DATASET=name]
	$(ESTIMATOR) notebooks $(if $(DATASET),--dataset $(DATASET))

.PHONY: test
test: .venv/ready  ## run all tests
	$(BIN)/python -m pytest -n 2

.PHONY: fast
fast: .venv/ready  ## run the quick tests, under a minute on two idle cores
	$(BIN)/python -m pytest -n 2 -m "not slow and not notebooks"

.PHONY: verify
verify: .venv/ready  ## after "make reproduce": are results and texts of all notebooks what they were?
	$(BIN)/python -m pytest -m notebooks

.PHONY: notebooks
notebooks: .venv/ready  ## maintainers: re-execute the committed notebooks in place, on the recorded data
	$(ESTIMATOR) notebooks --in-place

.PHONY: html
html: .venv/ready  ## write build/site: all notebooks and the API, to open from disk
	$(BIN)/python -m tools.site

.PHONY: lint
lint: .venv/ready  ## ruff, mypy, the least Python, and that committed outputs are fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vermin --quiet --violations --target=3.10- estimator_utils
	$(ESTIMATOR) notebooks --check

.PHONY: benchmark
benchmark: .venv/ready  ## speeds, each beside a named competitor
	$(BIN)/python -m pytest benchmarks --benchmark-only

.PHONY: jetson
jetson: .venv/ready  ## add jetson-stats (AGPL-3.0), for the jtop source and its tests
	$(PIP) -e .[jetson]

.PHONY: lock
lock: .venv/ready  ## renew requirements.lock after pyproject.toml [UPGRADE="name ..." or UPGRADE=all]
	$(PIP) uv
	$(BIN)/uv pip compile --quiet --universal --python-version $(PYTHON_MIN) --fork-strategy fewest --all-extras \
	    --no-annotate --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml \
	    $(if $(filter all,$(UPGRADE)),--upgrade,$(UPGRADE:%=--upgrade-package %))

.PHONY: clean
clean:  ## remove .venv and build
	rm -rf .venv build

interpreter = $(or $(wildcard $(BIN)/python),$(PYTHON))
is_new = import sys; print(sys.version_info >= tuple(map(int, "$(PYTHON_MIN)".split("."))))
.venv/ready: requirements.lock pyproject.toml setup.py
	$(if $(filter True,$(shell $(interpreter) -c '$(is_new)')),,\
	    $(error Python $(PYTHON_MIN) or later is needed, $(interpreter) is not: make PYTHON=python3.12))
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .[$(EXTRAS)]
	touch $@
