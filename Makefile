# The commands of README, and what they are made of. Works from any folder: make -C PATH demo.
# $(strip): a path may hold blanks, at which make's own functions on file names would cut it.
ROOT := $(shell dirname "$$(realpath -s "$(strip $(MAKEFILE_LIST))")")/
VENV ?= $(ROOT).venv
PYTHON3 ?= $(shell command -v python3.11 || command -v python3)
PYTHON := "$(VENV)/bin/python"
ARGS ?=
MARK := $(if $(CI),,--mark)
WITHIN ?= 7200
RUNS := tests/e2e tests/compose
INSTALL = test -n "$(PYTHON3)" || { echo "tracegrad: expected python3 on PATH, got none; install Python 3.11" >&2; exit 2; }; \
	"$(PYTHON3)" "$(ROOT)requirements/install.py"

.PHONY: help demo test test-all owed mutants collector suite runs env check fast lint types clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' "$(ROOT)Makefile" | sed 's/:.*## /\t/' | expand -t 10

env:  ## make the environment with the test tools
	@$(INSTALL) test --venv "$(VENV)"

demo:  ## train the small agent and show it live; ARGS="--steps 10 --seed 1"
	@$(INSTALL) demo --venv "$(VENV)"
	@cd "$(ROOT)" && exec "$(VENV)/bin/tracegrad" demo $(ARGS)

test: env lint  ## lint, types, the tests of each change (real Kafka, Faust, vLLM, torch); ARGS="tests/streams -k join"
	@"$(MAKE)" -f "$(ROOT)Makefile" --no-print-directory -j3 types suite $(if $(strip $(ARGS)),,runs)
	@cd "$(ROOT)" && $(PYTHON) -m tests.tiers

test-all: test  ## all tests: those of `make test`, then the second tier (tests/tiers.toml)
	@cd "$(ROOT)" && $(PYTHON) -m tests.tiers --run --all $(MARK)

owed: env  ## of the second tier what this tree owes, since it was green last
	@cd "$(ROOT)" && $(PYTHON) -m tests.tiers --run --within $(WITHIN) $(MARK)

mutants: env  ## bring old faults back, one at a time: does a test turn red (tests/mutants)
	@cd "$(ROOT)" && $(PYTHON) -m tests.mutants.run $(ARGS)

collector:  ## build the OpenTelemetry Collector of the end-to-end tests, once; asks go and its proxy
	@cd "$(ROOT)" && "$(PYTHON3)" -m tests.collector.build

# What tests of whole runs do is half waiting for processes: with all of compose they run beside the others.
suite:
	cd "$(ROOT)" && $(PYTHON) -m pytest -m "" $(if $(strip $(ARGS)),$(ARGS),--durations=20 $(addprefix --ignore=,$(RUNS)))

runs:
	cd "$(ROOT)" && $(PYTHON) -m pytest -m "" --durations=20 $(RUNS)

fast: env  ## the tests without broker, engine or torch: seconds
	cd "$(ROOT)" && $(PYTHON) -m pytest $(ARGS)

check: env lint types  ## lint and types only

lint:
	cd "$(ROOT)" && "$(VENV)/bin/ruff" check . && "$(VENV)/bin/ruff" format --check .

types:
	@mkdir -p "$(ROOT).typing/tracegrad"
	@for room in schemas producers streams trainer consumers compose; do ln -sfn ../../$$room "$(ROOT).typing/tracegrad/$$room"; done
	@ln -sfn ../../schemas/_root/__init__.py "$(ROOT).typing/tracegrad/__init__.py"
	cd "$(ROOT)" && $(PYTHON) -m mypy .typing/tracegrad tests

clean:  ## remove the environment, caches and runs
	cd "$(ROOT)" && rm -rf "$(VENV)" .typing .cache runs .mypy_cache .ruff_cache .pytest_cache
