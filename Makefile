# Two commands are enough on a machine with Python 3.11 or newer and pip:
#   make camel    set up .venv, run the main job on the embedded World, say where the results are
#   make test     set up .venv, check the notebooks, run them, run the tests
SHELL   := /bin/bash
VENV    ?= .venv
PRESET  ?= quick
ARGS    ?=
WORKERS ?= 2
# JupyterLab refuses to run as root unless told; in a container there is often nobody else.
LABFLAGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)
PYTHON  ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
             $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
BIN     := $(abspath $(VENV))/bin
# The stamp carries a checksum of what decides the installation, so only a change there installs again.
STAMP   := $(VENV)/.installed-$(shell cat settings.ini setup.py | cksum | tr ' ' '-')

# Without byte code every process compiles torch again.
unexport PYTHONDONTWRITEBYTECODE
export TOKENIZERS_PARALLELISM = false
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PATH := $(BIN):$(PATH)

.PHONY: help install camel test check lab readme notebooks export hooks clean
help:
	@echo "make camel [PRESET=smoke|quick|full] [ARGS='-p seed=1']   run the main job"
	@echo "make test        lint, every notebook, every test"
	@echo "make lab         JupyterLab on this folder"
	@echo "make check       the lint alone"
	@echo "make export      notebooks -> package;  make notebooks  run them and store outputs;  make readme"
	@echo "make install     set up $(VENV) and do nothing else;  PYTHON=python3.12 names the interpreter"
	@echo "make hooks       checks before each commit, in this clone (see CONTRIBUTING.md)"
	@echo "make clean       remove what can be made again (keeps $(VENV), results, runs)"

install: $(STAMP)
$(STAMP): settings.ini setup.py
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found; name one: make PYTHON=/path/to/python3"; exit 1; }
	@test ! -e $@ || touch $@
	@test -e $@ || { set -e; echo "Setting up $(VENV) with $(PYTHON) (half a minute with uv, two with pip)"; \
	  rm -f $(VENV)/.installed-*; \
	  $(PYTHON) -m venv $(VENV); \
	  if $(BIN)/python -m pip install -q uv && $(BIN)/uv pip install -q --python $(BIN)/python --compile-bytecode -e '.[dev]'; \
	  then :; else echo "uv did not do it, using pip"; $(BIN)/python -m pip install -q -e '.[dev]'; fi; \
	  $(BIN)/python -m pip check; \
	  touch $@; }

camel: export HF_HUB_OFFLINE = 1
camel: $(STAMP)
	$(BIN)/reid_lab run camel -p preset=$(PRESET) $(ARGS)

check: $(STAMP)
	$(BIN)/python tools/check_nbs.py

# pytest comes last: its closing line is the verdict.
test: export HF_HUB_OFFLINE = 1
test: export OMP_NUM_THREADS = 1
test: export MPLBACKEND = Agg
test: $(STAMP)
	$(BIN)/python tools/check_nbs.py --quiet
	$(BIN)/nbdev_test --n_workers $(WORKERS) --timing --skip_folder_re '^[_.]|^experiments$$'
	$(BIN)/python -m pytest -q tests

lab: $(STAMP)
	$(BIN)/python -m jupyterlab --ServerApp.root_dir=$(CURDIR) --LabApp.default_url=/lab/tree/nbs/index.ipynb $(LABFLAGS)

export: $(STAMP)
	$(BIN)/nbdev_export
	$(BIN)/nbdev_clean

notebooks: $(STAMP)
	$(BIN)/python tools/execute_nbs.py
	$(BIN)/python tools/layout.py --quiet
	$(BIN)/python tools/readme.py

readme: $(STAMP)
	$(BIN)/python tools/layout.py --quiet
	$(BIN)/python tools/readme.py

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
	find nbs reid_lab tests tools -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
