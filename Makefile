# Everything that these targets make lies inside the checkout (.venv/, dist/, native/build/) and is ignored by git.
PYTHON ?= python3
ROWS ?=
PYTEST ?=
ARCH ?=

.DEFAULT_GOAL := help
.PHONY: help demo test dev wheels lint clean

help:
	@echo "make demo     train a model on two processes (the first run installs TensorFlow into .venv/)"
	@echo "make test     all checks: linters, C tests, and the suites for every Python and TensorFlow of this machine"
	@echo "              ROWS=py37-tf1.15.5,py311-tfnew   only these rows     PYTEST='-k name -x'   more for pytest"
	@echo "make dev      .venv/dev with this checkout installed for editing"
	@echo "make wheels   all distributions into dist/"
	@echo "              ARCH=aarch64   for another machine, into dist/aarch64/"
	@echo "make lint     ruff, mypy, import-linter"
	@echo "make clean    remove what these made"

demo test dev wheels lint:
	@$(PYTHON) tests/rows $@ $(if $(ROWS),--rows=$(ROWS)) $(if $(PYTEST),--pytest="$(PYTEST)") $(if $(ARCH),--arch=$(ARCH))

clean:
	rm -rf .venv dist build npucoll/_engine.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf *.egg-info plugins/*/build plugins/*/src/*.egg-info
	$(MAKE) -C native clean
