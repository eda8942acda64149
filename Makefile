# Everything on a fresh machine with Python >= 3.11 (with venv), make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# more than there are processors: many tests wait for other programs
WORKERS ?= 4

.PHONY: help chat test lint types contracts unit bench clean

help:
	@echo "make chat    install what is needed and talk: no key, no network (ARGS='-c' goes on where you were)"
	@echo "make test    install what is needed, check style, types and layers, run all tests"
	@echo "make bench   measure against the peer and raw SQLite and print the table (SIZE=XS for a quick look)"
	@echo "make clean   remove the virtual environment and caches"

$(STAMP): pyproject.toml
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(STAMP)

$(VENV)/.chat: pyproject.toml
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "Installing (once) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[chat,embedded]"
	@touch $(VENV)/.chat

# Without the model file the program still answers, from your own history, and says so.
chat: $(VENV)/.chat
	@$(BIN)/hermes model path smollm2 >/dev/null 2>&1 || $(BIN)/hermes model install smollm2 || true
	@$(BIN)/hermes chat $(ARGS)

test: lint types contracts unit

lint: $(STAMP)
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/ruff format --check src tests benchmarks

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports

unit: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.run $(if $(SIZE),--size $(SIZE)) $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .bench
