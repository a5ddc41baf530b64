# `make demo` and `make test` set up everything they need in .venv; the second time they are quick.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-lowest soak lint format clean

demo: .venv/.installed
	$(BIN)/dspt demo

# One thread a process: the processes share the cores.
test: .venv/.installed lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --maxprocesses 8

test-slow: .venv/.installed
	$(BIN)/pytest -m slow

# More than 10,000 damaged files, and five times as many faults as the tests have; of another seed, if one is given.
soak: .venv/.installed
	OMP_NUM_THREADS=1 DSPT_FUZZ=4 DSPT_FAULTS=5 $(BIN)/pytest -n auto --maxprocesses 8 tests/test_faults.py tests/test_fuzz.py

# With the lowest version of each dependency that pyproject.toml allows.
test-lowest: .venv-lowest/.installed
	OMP_NUM_THREADS=1 .venv-lowest/bin/pytest -n auto --maxprocesses 8

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.venv-lowest/.installed: pyproject.toml scripts/lowest.py
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python scripts/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check \
		-c .venv-lowest/constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-lowest
