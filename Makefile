# make demo: see it work.  make test: everything that must hold before a commit.
PYTHON ?= python3
VENV ?= .venv
SB3 ?= .venv-sb3
PANDA ?= .venv-panda
GALLERY ?= .venv-gallery
BIN = $(VENV)/bin
FAST_XLA = --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false
AS_EVER = tests/deep/test_longer.py
LAST = tests/deep/test_docs.py tests/deep/test_both.py
FIRST = tests/test_[a-o]*.py
SECOND = tests/test_[p-z]*.py
# What is imported is byte-compiled then, and kept; most of what is installed never is.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt

.PHONY: help demo test warm test-deep test-first test-second lint format docs check-slow check-memory check-package check-sb3 check-panda check-gallery package bench clean

help:
	@echo "make demo        explore the two-room world with live progress, and write its report"
	@echo "make test        lint, types and tests (minutes)"
	@echo "make lint        lint and types only"
	@echo "make format      format the code"
	@echo "make check-slow  the heavier statistical checks"
	@echo "make check-memory   the tests with garbage in fresh memory (part of check-slow)"
	@echo "make docs        the documentation site, in site/"
	@echo "make package     the wheel and the source archive, in dist/"
	@echo "make check-package  the wheel in empty environments (part of check-slow)"
	@echo "make check-sb3   the goal rules in Stable-Baselines3, in an environment of their own (PyTorch)"
	@echo "make check-panda trainings in panda-gym, in an environment of their own (Python 3.11; part of check-slow)"
	@echo "make check-gallery  the examples of docs/gallery.md, in an environment of their own"
	@echo "make bench       benchmarks of the solver and the planner"
	@echo "make clean       remove the environment, caches and build outputs (not runs/)"

$(VENV)/stamp-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "adagoal needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/stamp-core: $(VENV)/stamp-python pyproject.toml constraints.txt
	$(BIN)/python $(PIP_INSTALL) --editable .
	@touch $@

# The extras by their names, without building the package again.
$(VENV)/stamp-dev: $(VENV)/stamp-core
	@$(BIN)/python -c 'import tomllib; \
	  extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  print(*extras["dev"], *extras["docs"], *extras["minigrid"], *extras["deep"], sep="\n")' > $(VENV)/extras.txt
	$(BIN)/python $(PIP_INSTALL) --requirement $(VENV)/extras.txt
	@touch $@

$(VENV)/stamp-slow: $(VENV)/stamp-dev
	$(BIN)/python $(PIP_INSTALL) --editable '.[ray]'
	@touch $@

demo: $(VENV)/stamp-core
	@$(BIN)/adagoal explore two-room --radius 40 --epsilon 1 --delta 0.1 --seed 0 --out runs/demo --overwrite
	@$(BIN)/adagoal audit runs/demo | tail -n 1
	@echo "open file://$(CURDIR)/runs/demo/report.html"

lint: $(VENV)/stamp-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Parts for two cores, which take the next one when they are done with the last. What most tests need is compiled as soon
# as there is enough to compile it with: the other core installs the rest, and checks the types.
#
# Small trainings take seconds to compile and milliseconds to run, so that they are compiled as fast as XLA can, not as
# well as it can. What depends on how XLA rounds has its defaults; so has all of check-slow.
test: $(VENV)/stamp-core
	@$(MAKE) --no-print-directory -j2 --output-sync warm lint test-deep test-first test-second

warm: $(VENV)/stamp-core
	@$(BIN)/adagoal warm --quiet

# It may begin before everything is compiled: those that need it come last.
test-deep: lint
	XLA_FLAGS='$(FAST_XLA)' $(BIN)/pytest $(filter-out $(LAST) $(AS_EVER),$(wildcard tests/deep/test_*.py)) $(LAST)

test-first: warm $(VENV)/stamp-dev
	$(BIN)/pytest $(FIRST) $(AS_EVER)

test-second: warm $(VENV)/stamp-dev
	$(BIN)/pytest $(SECOND)

format: $(VENV)/stamp-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# In two processes: Ray forks, which a process that has used JAX must not.
check-slow: $(VENV)/stamp-slow
	$(BIN)/pytest -m slow --ignore tests/deep
	$(BIN)/pytest -m slow tests/deep
	@$(MAKE) --no-print-directory check-memory
	@$(MAKE) --no-print-directory check-sb3
	@if $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
	  $(MAKE) --no-print-directory check-panda; else echo "check-panda is for Python 3.11: left out"; fi

# Fresh memory holds garbage here, so a result that depends on memory never written fails a test.
check-memory: $(VENV)/stamp-dev
	PYTHONMALLOC=debug MALLOC_PERTURB_=165 $(BIN)/pytest $(FIRST) $(SECOND)

$(SB3)/stamp: $(VENV)/stamp-python pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SB3)
	$(SB3)/bin/python $(PIP_INSTALL) --editable '.[deep,sb3]' sb3-contrib pytest
	@touch $@

check-sb3: $(SB3)/stamp
	$(SB3)/bin/pytest tests/sb3

# panda-gym needs PyBullet, whose wheels are for Python 3.11 alone.
$(PANDA)/stamp: $(VENV)/stamp-python pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PANDA)
	$(PANDA)/bin/python $(PIP_INSTALL) --editable '.[deep]' panda-gym pytest
	@touch $@

check-panda: $(PANDA)/stamp
	$(PANDA)/bin/pytest tests/panda

$(GALLERY)/stamp: $(VENV)/stamp-python pyproject.toml
	$(PYTHON) -m venv $(GALLERY)
	$(GALLERY)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --editable '.[minigrid]' \
	  pytest matplotlib nasim==0.12.0 textworld==1.7.0 aalpy==2.0.0 gymnax==1.0.1
	@touch $@

check-gallery: $(GALLERY)/stamp
	$(GALLERY)/bin/pytest tests/gallery

# The pages are gathered in build/docs: those of docs/, the tutorials as they were played, the reference, the demo.
docs: $(VENV)/stamp-dev
	$(BIN)/python docs/tools/stage.py build/docs
	$(BIN)/adagoal explore two-room --radius 40 --epsilon 1 --delta 0.1 --seed 0 --out build/demo --overwrite --quiet
	mkdir -p build/docs/demo && cp build/demo/report.html build/docs/demo/
	$(BIN)/python docs/tools/concept_pictures.py build/docs/figures
	@if command -v chromium > /dev/null; then $(BIN)/python docs/tools/report_pictures.py build/demo build/docs/figures; fi
	$(BIN)/zensical build --strict
	@echo "open $(CURDIR)/site/index.html; its search needs a server: python3 -m http.server --directory site"

package: $(VENV)/stamp-dev
	$(BIN)/python -m build --outdir dist

check-package: $(VENV)/stamp-dev
	$(BIN)/pytest -m slow tests/test_package.py

bench: $(VENV)/stamp-dev
	@for file in $(filter-out benchmarks/deep_% benchmarks/cells.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) $(SB3) $(PANDA) $(GALLERY) build dist site .pytest_cache .mypy_cache .ruff_cache
	find src tests benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +
