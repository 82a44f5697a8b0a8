# make demo and make test work on a fresh machine: they install into .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Several processes with several torch threads each would spin against one another.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 COLUMNS=120

.PHONY: install demo test test-all lint format docs bench bench-peers clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "assay needs Python 3.11 to 3.13; say which with make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: install
	$(BIN)/assay demo

test: lint
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -n auto --dist loadgroup

# The larger matrix: 300 random models and prompts, every method on every family.
test-all: lint
	$(TEST_ENVIRONMENT) ASSAY_RANDOM_CASES=300 ASSAY_EVERY_COMBINATION=1 $(BIN)/python -m pytest -n auto --dist loadgroup

lint: install
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# A site of plain files in site/.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	PYTHON=$(BIN)/python PEERS= benchmarks/all.sh

# PEERS is a folder with the environments that benchmarks/README.md describes.
bench-peers: install
	@test -n "$(PEERS)" || { echo "Say where the peers' environments are: make bench-peers PEERS=FOLDER"; exit 2; }
	PYTHON=$(BIN)/python PEERS="$(PEERS)" benchmarks/all.sh

clean:
	rm -rf .venv runs site .pytest_cache .mypy_cache .ruff_cache .hypothesis
