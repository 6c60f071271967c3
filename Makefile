# make reproduce [DATASET=name]   set up, run every notebook headless into build/DATASET/, print the headline
# make test                       set up, run all tests
# make verify                     after make reproduce: are results and texts of all notebooks what they were?
# make notebooks                  maintainers: re-execute the committed notebooks in place on the recorded data
# make lint                       ruff (lint, format), mypy, and that committed outputs are fresh
# make benchmark                  speeds, each beside a named competitor
PYTHON ?= python3
BIN := .venv/bin

.PHONY: reproduce test verify notebooks lint benchmark clean

reproduce: .venv/ready
	$(BIN)/python -m estimator_utils notebooks $(if $(DATASET),--dataset $(DATASET))

test: .venv/ready
	$(BIN)/python -m pytest

verify: .venv/ready
	$(BIN)/python -m pytest -m notebooks

notebooks: .venv/ready
	$(BIN)/python -m estimator_utils notebooks --in-place

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m estimator_utils notebooks --check

benchmark: .venv/ready
	$(BIN)/python -m pytest benchmarks --benchmark-only

.venv/ready: requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

clean:
	rm -rf .venv build
