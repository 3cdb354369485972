# make demo: see it work.  make test: everything that must hold before a commit.
PYTHON ?= python3
VENV ?= .venv
SB3 ?= .venv-sb3
PANDA ?= .venv-panda
GALLERY ?= .venv-gallery
BIN = $(VENV)/bin
FAST_XLA = --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false
DEFAULT_XLA = tests/deep/test_extend_training.py
NEED_WARM = tests/deep/test_docs.py tests/deep/test_shared_commands.py
# Parts of the core tests. Several short ones keep both cores busy until the end.
PARTS = 1 2 3 4 5
PART_1 = tests/test_[a-c]*.py
PART_2 = tests/test_[d-g]*.py
PART_3 = tests/test_[h-o]*.py
PART_4 = tests/test_[p-r]*.py
PART_5 = tests/test_[s-z]*.py $(DEFAULT_XLA)
# Modules are byte-compiled when they are first imported (pip --no-compile): most installed modules never are.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt

.PHONY: help demo test warm test-deep lint format docs check-slow check-memory check-package check-sb3 check-panda check-gallery package bench clean

help:
	@echo "make demo        explore the two-room environment with live progress, and write its report"
	@echo "make test        lint, types and tests (minutes)"
	@echo "make lint        lint and types only"
	@echo "make format      format the code"
	@echo "make check-slow  the heavier statistical checks"
	@echo "make check-memory   the tests with garbage in fresh memory (part of check-slow)"
	@echo "make docs        the documentation site, in site/"
	@echo "make package     the wheel and the source archive, in dist/"
	@echo "make check-package  the wheel in empty environments (part of check-slow)"
	@echo "make check-sb3   goal rules in Stable-Baselines3, in a separate environment (PyTorch)"
	@echo "make check-panda training in panda-gym, in a separate environment (Python 3.11; part of check-slow)"
	@echo "make check-gallery  the examples of docs/gallery.md, in a separate environment"
	@echo "make bench       benchmarks of the solver and the planner (8 minutes)"
	@echo "make clean       remove the environment, caches and build outputs (not runs/)"

$(VENV)/stamp-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "adagoal needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/stamp-core: $(VENV)/stamp-python pyproject.toml constraints.txt
	$(BIN)/python $(PIP_INSTALL) --editable .
	@touch $@

# Installs the extras by name, without building the package again.
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

# Two cores work through these parts. `warm` compiles the Numba functions that most tests call as soon as the core package
# is installed; meanwhile the other core installs the extras and checks the types.
#
# Small training runs take seconds to compile and milliseconds to run, so XLA compiles them without optimisation. Tests
# that depend on how XLA rounds use its defaults (DEFAULT_XLA), and so does check-slow.
test: $(VENV)/stamp-core
	@$(MAKE) --no-print-directory -j2 --output-sync warm lint test-deep $(PARTS:%=test-part-%)

warm: $(VENV)/stamp-core
	@$(BIN)/adagoal warm --quiet

# Does not wait for `warm`. The files that call compiled Numba functions come last.
test-deep: lint
	XLA_FLAGS='$(FAST_XLA)' $(BIN)/pytest $(filter-out $(NEED_WARM) $(DEFAULT_XLA),$(wildcard tests/deep/test_*.py)) $(NEED_WARM)

test-part-%: warm $(VENV)/stamp-dev
	$(BIN)/pytest $(PART_$*)

format: $(VENV)/stamp-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Two processes: Ray forks, and a process that has used JAX must not fork.
check-slow: $(VENV)/stamp-slow
	$(BIN)/pytest -m slow --ignore tests/deep
	$(BIN)/pytest -m slow tests/deep
	@$(MAKE) --no-print-directory check-memory
	@$(MAKE) --no-print-directory check-sb3
	@if $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
	  $(MAKE) --no-print-directory check-panda; else echo "check-panda needs Python 3.11: skipped"; fi

# Fresh memory holds garbage here, so a result that depends on memory never written fails a test.
check-memory: $(VENV)/stamp-dev
	PYTHONMALLOC=debug MALLOC_PERTURB_=165 $(BIN)/pytest tests/test_*.py

$(SB3)/stamp: $(VENV)/stamp-python pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SB3)
	$(SB3)/bin/python $(PIP_INSTALL) --editable '.[deep,sb3]' sb3-contrib pytest
	@touch $@

check-sb3: $(SB3)/stamp
	$(SB3)/bin/pytest tests/sb3

# panda-gym needs PyBullet, which has wheels for Python 3.11 only.
$(PANDA)/stamp: $(VENV)/stamp-python pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PANDA)
	$(PANDA)/bin/python $(PIP_INSTALL) --editable '.[deep]' panda-gym pytest
	@touch $@

check-panda: $(PANDA)/stamp
	$(PANDA)/bin/pytest tests/panda

# pip byte-compiles these packages: some have outdated escapes in strings, which pytest would report as errors on import.
$(GALLERY)/stamp: $(VENV)/stamp-python pyproject.toml
	$(PYTHON) -m venv $(GALLERY)
	$(GALLERY)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[minigrid]' \
	  pytest matplotlib nasim==0.12.0 textworld==1.7.0 aalpy==2.0.0 gymnax==1.0.1 six
	@touch $@

check-gallery: $(GALLERY)/stamp
	$(GALLERY)/bin/pytest tests/gallery

# build/docs collects the pages of docs/, the executed tutorials, the reference and the demo.
docs: $(VENV)/stamp-dev
	$(BIN)/python docs/tools/stage.py build/docs
	$(BIN)/adagoal explore two-room --radius 40 --epsilon 1 --delta 0.1 --seed 0 --out build/demo --overwrite --quiet
	mkdir -p build/docs/demo && cp build/demo/report.html build/docs/demo/
	$(BIN)/python docs/tools/concept_pictures.py build/docs/figures
	$(BIN)/python docs/tools/machine_picture.py build/docs/figures/state-machine.png
	@if command -v chromium > /dev/null; then $(BIN)/python docs/tools/report_pictures.py build/demo build/docs/figures; fi
	$(BIN)/zensical build --strict
	@echo "open $(CURDIR)/site/index.html; its search needs a server: python3 -m http.server --directory site"

package: $(VENV)/stamp-dev
	$(BIN)/python -m build --outdir dist

check-package: $(VENV)/stamp-dev
	$(BIN)/pytest -m slow tests/test_package.py

# The others train for long, need other packages, or take arguments; each says how to run it.
BENCHMARKS = $(filter-out $(addprefix benchmarks/,deep_% sb3_% cells.py planning_rlberry.py verification.py),\
  $(wildcard benchmarks/*.py))

bench: $(VENV)/stamp-dev
	@for file in $(BENCHMARKS); do \
	  echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) $(SB3) $(PANDA) $(GALLERY) build dist site .pytest_cache .mypy_cache .ruff_cache
	find src tests benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +
