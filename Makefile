# `make demo` and `make test` need python3 (3.11 or newer) and nothing else prepared.
PYTHON ?= python3
CHOSEN := $(if $(filter-out file,$(origin PYTHON)),--this-python)
BIN := .venv/bin
FAST := "not slow and not storm and not engine"
SLOW := "slow and not storm and not engine"
.DEFAULT_GOAL := all
.PHONY: all dev demo test test-deps frameworks engines test-engines test-slow check fix gen bench up docs clean

all: ## the command at .venv/bin/hekla
	@$(PYTHON) tools/bootstrap.py $(CHOSEN)
	@echo "ready: .venv/bin/hekla --help"

dev: ## the same, with what tests and checks need
	@$(PYTHON) tools/bootstrap.py --dev $(CHOSEN)

demo: ## the platform starts, runs a gang of real processes, and ends by itself
	@$(PYTHON) tools/bootstrap.py $(CHOSEN)
	@$(BIN)/hekla demo

up: ## the platform, until Ctrl-C
	@$(PYTHON) tools/bootstrap.py $(CHOSEN)
	@$(BIN)/hekla up

test: dev ## every test that needs no more than this machine has
	@$(BIN)/python -m pytest -n auto --cache-clear -m $(FAST) || { [ $$? = 1 ] && $(BIN)/python tools/failed_again.py $(FAST); }

test-slow: dev ## the suites that take longer
	@$(BIN)/python -m pytest -n auto --cache-clear -m $(SLOW) || { [ $$? = 1 ] && $(BIN)/python tools/failed_again.py $(SLOW); }

test-deps: ## as root: Debian packages that more suites want
	@sh tools/test-deps.sh

frameworks: ## PyTorch, Ray and TensorFlow beside the product, for the examples that run them (2 minutes, 2 GB)
	@sh tools/frameworks.sh

ENGINES := $(HOME)/.cache/hekla/engines/vllm-0.32.0-cpu
engines: ## vLLM for the CPU beside the product, once for all checkouts (5 minutes, 3 GB)
	@tools/install-vllm-cpu.sh $(ENGINES)

test-engines: dev ## the router in front of two real vLLM servers; it says why where it cannot
	@$(BIN)/python -m pytest -m engine -rs tests/serving/engines

check: dev ## what CI reads: style, types, import contracts, house tests
	@$(BIN)/ruff check src tests tools bench sdk examples
	@$(BIN)/ruff format --check src tests tools bench sdk examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/house

fix: dev ## format and mend what can be mended
	@$(BIN)/ruff check --fix src tests tools bench sdk examples
	@$(BIN)/ruff format src tests tools bench sdk examples

gen: dev ## CRDs, reference pages and golden files from their one source
	@$(BIN)/python tools/gen.py

bench: dev ## the numbers of SPECIFICATION.md
	@$(BIN)/python -m bench

docs: dev ## the generated reference pages, checked against the code
	@$(BIN)/python tools/gen.py --docs

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
