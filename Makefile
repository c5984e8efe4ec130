# Two commands are enough on a machine with Python 3.11 or newer and pip:
#   make camel    set up .venv, run the main job on the embedded World, say where the results are
#   make test     set up .venv, check the notebooks, run them, run the tests (half an hour; make test-all has the rest, too)
# Paths may hold spaces: they are quoted in the shell, and no target or prerequisite is a path.
SHELL   := /bin/bash
NEW     := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
# An active conda environment with a new enough Python is used as it is, unless it is the base or PYTHON names another.
ifeq ($(origin PYTHON),undefined)
CONDA   := $(shell test -n "$$CONDA_PREFIX" -a "$$CONDA_DEFAULT_ENV" != base -a ! -d "$$CONDA_PREFIX/condabin" && \
             "$$CONDA_PREFIX/bin/python" $(NEW) && echo "$$CONDA_PREFIX")
endif
VENV    ?= $(or $(CONDA),.venv)
PRESET  ?= quick
ARGS    ?=
WORKERS ?= 2
# make TORCH=cpu: the build of torch without CUDA, which saves about 5 GB; on Linux it has an index of its own.
TORCH   ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# JupyterLab refuses to run as root unless told; in a container there is often nobody else.
LABFLAGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)
PYTHON  ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do $$p $(NEW) && { command -v $$p; break; }; done)
BIN     := $(if $(filter /%,$(firstword $(VENV))),$(VENV),$(CURDIR)/$(VENV))/bin
RUN     := "$(BIN)/python"
# The stamp carries a checksum of what decides the installation and of where the clone is, so only a change there installs again.
STAMP   := $(VENV)/.installed-$(shell { cat settings.ini setup.py; pwd; } | cksum | tr ' ' '-')

# Without byte code every process compiles torch again. An installation writes that of all 24,000 files (half a minute on two
# cores); `make camel` leaves it to the first import, since a run reads a tenth of them.
BYTECODE := --compile-bytecode
unexport PYTHONDONTWRITEBYTECODE
export TOKENIZERS_PARALLELISM = false
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PATH := $(BIN):$(PATH)

.PHONY: help install camel test test-rest test-studies test-all rehearsal gpu check docs lab readme notebooks export hooks clean
help:
	@echo "make camel [PRESET=smoke|quick|full] [ARGS='-p seed=1']   run the main job"
	@echo "make test        lint, every library notebook, every test that needs no browser, no kill and no whole experiment"
	@echo "make test-all    make test, then make test-rest: whole experiments and tutorials, processes that are killed, browsers;"
	@echo "                 then make test-studies: further studies of each experiment, pages of measured results"
	@echo "make rehearsal   faults that only a GPU would show, found on the CPU: all of it (a part is in make test-rest)"
	@echo "make gpu         for whoever has a GPU: checks it beside the CPU and writes a report to send; ARGS='--only equal steps'"
	@echo "make lab         JupyterLab on this folder"
	@echo "make check       the lint alone"
	@echo "make export      notebooks -> package;  make notebooks  run them and store outputs;  make readme"
	@echo "make docs        the documentation as pages in _docs/site, with their links checked"
	@echo "make install     set up $(VENV) and do nothing else;  PYTHON=python3.12 names the interpreter, TORCH=cpu the small torch"
	@echo "make hooks       checks before each commit, in this clone (see CONTRIBUTING.md)"
	@echo "make clean       remove what can be made again (keeps $(VENV), results, runs)"

install:
	@test ! -e "$(STAMP)" || exit 0; set -e; \
	if test -n "$(CONDA)" -a "$(VENV)" = "$(CONDA)"; then echo "Installing into the active conda environment $(VENV)"; \
	else test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found; name one: make PYTHON=/path/to/python3"; exit 1; }; \
	  echo "Setting up $(VENV) with $(PYTHON) (half a minute with uv, two with pip)"; \
	  "$(PYTHON)" -m venv "$(VENV)"; fi; \
	rm -f "$(VENV)"/.installed-*; \
	if test "$(TORCH)" = cpu; then \
	  $(RUN) -m pip install -q --retries 1 --timeout 15 --index-url "$(TORCH_INDEX)" \
	    $$(sed -n 's/^requirements = //p' settings.ini | tr ' ' '\n' | grep -E '^torch(vision)?[>=]') 2>/dev/null \
	  || echo "No CPU build of torch at $(TORCH_INDEX): going on with the ordinary one; TORCH_INDEX names another index"; fi; \
	if test "$(VENV)" != "$(CONDA)" && $(RUN) -m pip install -q uv && \
	  $(RUN) -m uv pip install -q --python $(RUN) $(BYTECODE) -e '.[dev]'; \
	then $(RUN) -m uv pip check -q --python $(RUN); \
	else echo "installing with pip"; $(RUN) -m pip install -q -e '.[dev]'; $(RUN) -m pip check; fi; \
	touch "$(STAMP)"

camel: BYTECODE :=
camel: export HF_HUB_OFFLINE = 1
camel: install
	$(RUN) -m reid_lab run camel -p preset=$(PRESET) $(ARGS)

check: install
	$(RUN) -m ruff check --quiet .
	$(RUN) tools/check_nbs.py

# pytest comes last: its closing line is the verdict. Tests in a browser wait much; meanwhile others compute.
LONG := kill or whole or browser
test test-rest test-studies rehearsal: export HF_HUB_OFFLINE = 1
test test-rest test-studies rehearsal: export OMP_NUM_THREADS = 1
test test-rest test-studies rehearsal: export MPLBACKEND = Agg
test: install
	$(RUN) -m ruff check --quiet .
	$(RUN) tools/check_nbs.py --quiet
	$(RUN) "$(BIN)/nbdev_test" --n_workers $(WORKERS) --timing --skip_folder_re '^[_.]|^experiments$$|^tutorials$$'
	$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -m "not ($(LONG))" tests

test-rest: install
	$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -m "($(LONG)) and not study" tests

# Every check runs the first study of an experiment; the others cost a quarter of an hour, and run before a release.
test-studies: install
	$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -m study tests

# The stand-in for a GPU changes torch for the process that it is in; a small part of this is a test of test-rest.
rehearsal: export REID_LAB_REHEARSAL = 1
rehearsal: install
	$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -o "python_files=rehearse_*.py" tests/rehearsal

# For whoever has a GPU: what it computes beside the CPU, steps beside their plans, experiments, tests; one report to send.
gpu: export HF_HUB_OFFLINE = 1
gpu: export MPLBACKEND = Agg
gpu: install
	$(RUN) tools/gpu.py $(ARGS)

test-all:
	$(MAKE) test
	$(MAKE) test-rest
	$(MAKE) test-studies

docs: install
	$(RUN) tools/docs/build.py --jobs $(WORKERS)

lab: install
	$(RUN) -m jupyterlab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/nbs/index.ipynb $(LABFLAGS)

export: install
	$(RUN) "$(BIN)/nbdev_export"
	$(RUN) "$(BIN)/nbdev_clean"

notebooks: install
	$(RUN) tools/execute_nbs.py
	$(RUN) tools/layout.py --quiet
	$(RUN) tools/readme.py

readme: install
	$(RUN) tools/layout.py --quiet
	$(RUN) tools/readme.py

# The checks of a commit and nbdev's merge of notebooks, for this clone only. nbdev's own hooks are the second choice, because
# they also configure Jupyter for all other projects of the user.
hooks:
	@if command -v pre-commit >/dev/null && command -v nbdev_merge >/dev/null; then set -e; \
	  pre-commit install; \
	  git config --local merge.nbdev-merge.name "notebooks cell by cell"; \
	  git config --local merge.nbdev-merge.driver "'$$(command -v nbdev_merge)' %O %A %B %P"; \
	  echo "notebooks are merged cell by cell in this clone"; \
	elif command -v nbdev_install_hooks >/dev/null; then \
	  echo "pre-commit is not installed: using nbdev's hooks, which also write to ~/.jupyter, for every project"; nbdev_install_hooks; \
	else echo "Neither pre-commit nor nbdev is installed; run: make install hooks"; exit 1; fi

clean:
	rm -rf build dist .pytest_cache .hypothesis _proc _docs
	find nbs reid_lab tests tools \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
