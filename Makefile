# The two commands of README, and what they are made of. Works from any folder: make -C PATH demo.
ROOT := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
VENV ?= $(ROOT).venv
PYTHON3 ?= $(shell command -v python3.11 || command -v python3)
PYTHON := $(VENV)/bin/python
ARGS ?=

.PHONY: help demo test env check fast lint types docs clean
help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

env:  ## make the environment with the test tools
	@$(PYTHON3) $(ROOT)requirements/install.py test --venv $(VENV)

demo:  ## train the small agent and show it live; ARGS="--steps 10 --seed 1"
	@$(PYTHON3) $(ROOT)requirements/install.py demo --venv $(VENV)
	@cd $(ROOT) && exec $(VENV)/bin/tracegrad demo $(ARGS)

test: env lint types  ## lint, types, all tests (real Kafka, Faust, vLLM, torch)
	cd $(ROOT) && $(PYTHON) -m pytest -m "" $(ARGS)

fast: env  ## the tests without broker, engine or torch: seconds
	cd $(ROOT) && $(PYTHON) -m pytest $(ARGS)

check: env lint types  ## lint and types only

lint:
	cd $(ROOT) && $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

types:
	@mkdir -p $(ROOT).typing/tracegrad
	@for room in schemas producers streams trainer consumers compose; do ln -sfn ../../$$room $(ROOT).typing/tracegrad/$$room; done
	cd $(ROOT) && $(PYTHON) -m mypy .typing/tracegrad tests

clean:  ## remove the environment, caches and runs
	rm -rf $(VENV) $(ROOT).typing $(ROOT).cache $(ROOT)runs $(ROOT).mypy_cache $(ROOT).ruff_cache $(ROOT).pytest_cache
