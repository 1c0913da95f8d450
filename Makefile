# GNU make 3.81 and later (macOS ships that one). Each target sets up what it needs.
.DEFAULT_GOAL := help
.PHONY: help up demo compose compose-check llm test test-slow check bench clean requirements programs

BIN := .venv/bin
PROVIDE := tools/provide.py
# Arguments of `queenright up`: make up ARGS="--no-demo --port 9000"
ARGS ?=
# Arguments of pytest: make test PYTEST="tests/health -x"
PYTEST ?=
# Minutes after which `make test-slow` starts no further test or disturbance of the cluster. With a limit, it does not
# search for counterexamples and does not fuzz.
MINUTES ?=
STARTED := $(shell date +%s)
# The tests write thousands of small files and wait for the disk. They use memory instead if there is enough of it and
# programs may run there.
IN_MEMORY := $(shell if [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt 4000000 ] 2>/dev/null \
	&& [ -w /dev/shm ] && ! grep -q ' /dev/shm .*noexec' /proc/mounts 2>/dev/null; then echo TMPDIR=/dev/shm; fi)
# A model other than the built-in rules needs litellm, which is large.
UP_GROUP := $(if $(findstring --model,$(ARGS)),llm,run)

# Hundreds of short processes would otherwise compile every module again.
unexport PYTHONDONTWRITEBYTECODE

export PATH := $(CURDIR)/.venv/bin:$(PATH):$(CURDIR)/.tools/bin

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade) pyproject.toml

PYTHON := $(shell for python in python3.13 python3.12 python3.11 python3; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$python; break; fi; done)

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: .venv/.$(UP_GROUP) ## Run everything on this machine, with demo agents to watch; ARGS="..." is passed on
	@$(PYTHON) $(PROVIDE) programs || echo "Continuing without them: the service detects, judges and stores without Prometheus and Alertmanager."
	@$(BIN)/queenright up $(ARGS)

demo: up ## The same as up

# Checked before anything is installed or written.
compose-check:
	@docker compose version >/dev/null 2>&1 || { echo "Docker Compose was not found: install it and run make compose again." >&2; exit 1; }

compose: compose-check .venv/.run ## Prepare secrets and tokens, then run everything in containers: docker compose
	@$(BIN)/python compose/prepare.py
	@docker compose up --build --detach --wait
# An Alertmanager that was already running reloads its configuration.
	@docker compose kill --signal HUP alertmanager

llm: .venv/.llm ## Install litellm, for models other than the built-in rules (queenright run --model)

test: ## Run the tests; PYTEST="..." is passed on
test-slow: ## Run the slow tests, search for counterexamples of the properties, fuzz the API; PYTEST="..." too
test-slow: SLOW := --durations=30 \
	$(if $(MINUTES),-m slow --minutes $(MINUTES),-m "slow or hypothesis" --hypothesis-profile=search)
test test-slow: .venv/.dev
	@$(PYTHON) $(PROVIDE) programs || echo "The tests that need these programs will fail." >&2
	@$(if $(SLOW),$(PYTHON) $(PROVIDE) newest || echo "The tests with the newest of these programs are skipped." >&2)
	@$(if $(SLOW),$(IN_MEMORY) $(PYTHON) $(PROVIDE) builder || echo "The tests of the image are skipped." >&2)
	@$(PYTHON) $(PROVIDE) browser || echo "The tests that need a browser will fail." >&2
	@$(IN_MEMORY) $(BIN)/python -m pytest -n 4 $(SLOW) $(PYTEST)
	@$(if $(PYTEST)$(MINUTES),,$(if $(SLOW),$(IN_MEMORY) $(BIN)/python -m tests.fuzz))
	@$(if $(PYTEST),,$(if $(SLOW),$(IN_MEMORY) $(BIN)/python -m tests.cluster.chaos --clusters 2 \
		$(if $(MINUTES),--minutes $(MINUTES) --since $(STARTED))))

check: .venv/.dev programs ## Lint, format, types, imports, rules, configurations; a short fuzz of the API
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.console --lint
	$${PROMTOOL_BIN:-promtool} check rules alerting/prometheus/rules/*.yml
	$${AMTOOL_BIN:-amtool} check-config alerting/alertmanager/alertmanager.yml
	$(BIN)/python -m tools.rules --check
	$(BIN)/python -m tools.dashboards --check
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml compose/cluster.yaml
	$(IN_MEMORY) $(BIN)/python -m tests.fuzz --quick --examples 2

bench: .venv/.dev programs ## Measure, and print a table with the budgets
	@$(BIN)/python -m tools.benchmarks

requirements: .venv/.dev ## Resolve requirements/*.txt from pyproject.toml; UPGRADE=1 takes newer versions
	$(COMPILE) --extra server --extra llm --extra mcp --extra cluster --extra tui --group dev -o requirements/dev.txt
	$(COMPILE) --extra server --extra llm --extra mcp --extra cluster --extra tui --group build -c requirements/dev.txt -o requirements/llm.txt
	$(COMPILE) --extra server --extra mcp --extra cluster --extra tui --group build -c requirements/dev.txt -o requirements/run.txt

console: .venv/.dev ## Build the console (needs Node); the built files are committed
	@$(BIN)/python -m tools.console

clean: ## Remove all generated files
	rm -rf .venv .tools .queenright build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

programs:
	@$(PYTHON) $(PROVIDE) programs

# A stamp for each set of packages; the larger sets include the smaller.
.venv/.%: requirements/%.txt pyproject.toml $(PROVIDE)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later was not found. Debian 12, Ubuntu 24.04 and later: apt-get install python3. macOS: brew install python" >&2; exit 1; }
	@$(PYTHON) $(PROVIDE) venv $*
	@touch $@ .venv/.run
