# SPDX-License-Identifier: MIT
# Each target sets up what it needs in .venv/ and build/; a second run with unchanged sources sets up nothing.
# Needs python3 with venv, and for the compiled core a C compiler. PYTHON=python3.12 make … chooses another Python.

PYTHON ?= python3
venv := $(PYTHON) tools/venv.py
# Words for pytest, as in: make test-pure ARGS="-k counters -x"
ARGS ?=
# Only what is installed may be imported: neither the sources nor a user's own packages.
pytest = env -u PYTHONPATH PYTHONNOUSERSITE=1 SOFTVERBS_CORE=$(1) .venv/$(1)/bin/python -m pytest $(ARGS)

.PHONY: help demo test test-compiled test-pure lint coverage bench interop rdma-core-tests programs sanitize clean

help:
	@echo "make demo      two processes over RoCEv2 on loopback: the main job, checked"
	@echo "make test      linters, then the test suite on the compiled and on the uncompiled core"
	@echo "make lint      ruff, mypy --strict, layers"
	@echo "make coverage  branch coverage of the uncompiled core, in htmlcov/"
	@echo "make bench     softverbs and its peers, a table and a plot; ARGS=c the C face alone, ARGS=profile where its time goes"
	@echo "make interop   against Linux's Soft-RoCE in a virtual machine"
	@echo "make rdma-core-tests  rdma-core's own tests of pyverbs, fetched and run against softverbs"
	@echo "make programs  every program of perftest with every transport and option that it has: a table"
	@echo "make sanitize  the C driver and its tests on the compiler's sanitizers; ARGS=\"thread stress --time 60000\""
	@echo "make clean     removes everything that these made"

demo:
	@$(venv) demo
	.venv/demo/bin/softverbs demo

test: lint
	@if $(venv) headers; then builds="test-compiled test-pure"; \
	else builds=test-pure; echo "-- no compiled core here: testing the uncompiled one only"; fi; \
	$(MAKE) --no-print-directory -j2 --output-sync=target $$builds

test-compiled:
	@$(venv) compiled
	$(call pytest,compiled)

test-pure:
	@$(venv) pure
	$(call pytest,pure)

lint:
	@$(venv) pure
	.venv/pure/bin/ruff check .
	.venv/pure/bin/mypy
	PYTHONPATH=src .venv/pure/bin/lint-imports
	.venv/pure/bin/python tools/core_imports.py --check

coverage:
	@$(venv) pure
	rm -f .coverage .coverage.*
	env -u PYTHONPATH PYTHONNOUSERSITE=1 SOFTVERBS_CORE=pure .venv/pure/bin/coverage run -m pytest $(ARGS)
	.venv/pure/bin/coverage combine -q
	.venv/pure/bin/coverage html -q
	.venv/pure/bin/coverage report

bench:
	@$(venv) bench
	.venv/bench/bin/python -m bench $(ARGS)

interop:
	@$(venv) interop
	PYTHON=$(CURDIR)/.venv/interop/bin/python interop/run.sh $(ARGS)

rdma-core-tests:
	@if $(venv) headers; then $(venv) compiled && build=compiled; else $(venv) pure && build=pure; fi && \
	env -u PYTHONPATH PYTHONNOUSERSITE=1 $(PYTHON) tools/rdma_core_tests.py --python .venv/$$build/bin/python $(ARGS)

programs:
	@if $(venv) headers; then $(venv) compiled && build=compiled; else $(venv) pure && build=pure; fi && \
	env -u PYTHONPATH PYTHONNOUSERSITE=1 .venv/$$build/bin/python -m tests.programs.matrix $(ARGS)

sanitize:
	@if $(venv) headers; then $(venv) compiled && build=compiled; else $(venv) pure && build=pure; fi && \
	env -u PYTHONPATH PYTHONNOUSERSITE=1 .venv/$$build/bin/python tools/sanitize.py $(ARGS)

clean:
	rm -rf .venv .cache build dist htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
