# The two commands are `make demo` and `make test`; `make help` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo dev test soak lint docs lock bench-mining bench-sweep bench-tenants clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 15) else "Python 3.11 to 3.14 is needed; set PYTHON=python3.x")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY) ## Seed invented tenants, run the whole pass once, print what it found
	@$(BIN)/forgetting demo

dev: $(READY) ## Open the Dagster UI on the demo (http://127.0.0.1:3000)
	@$(BIN)/forgetting dev --demo

test: $(READY) ## Run the whole test suite
	@$(BIN)/python -m pytest -n 3 --dist worksteal -q $(ARGS)

lint: $(READY) ## ruff, mypy, import-linter, sqlfluff
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/sqlfluff lint sql

docs: $(READY) ## Write the generated pages of docs/ anew: commands, assets, tables, settings, errors
	@UPDATE_DOCS=1 $(BIN)/python -m pytest -q tests/integration/test_reference.py

lock: $(READY) ## Resolve requirements.lock again from pyproject.toml
	@$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-strip-extras --no-header \
	  --python-version 3.11 --all-extras --group dev --upgrade --quiet pyproject.toml -o requirements.lock

soak: $(READY) ## Kill passes with SIGKILL at 100 seeded points and more, and account for every call
	@SOAK_KILLS=100 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/integration/test_kills.py $(ARGS)

bench-mining: $(READY) ## Measure mining and write docs/benchmarks/mining.md (ARGS=--large: 300,000 too)
	@$(BIN)/python -m eval.bench.mining $(ARGS)

bench-sweep: $(READY) ## Measure the archival sweep and write docs/benchmarks/sweep.md
	@$(BIN)/python -m eval.bench.sweep

bench-tenants: $(READY) ## Measure a night of 1,000 tenants and write docs/benchmarks/tenants.md
	@$(BIN)/python -m eval.bench.tenants

clean: ## Remove the environment and the embedded server's data
	rm -rf $(VENV) .forgetting
