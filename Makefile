# What there is to do here; `make` alone prints it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install run check test test-spark lint methods campaign mutate model simulate chaos rings bench bench-quick docs dist lock clean check-tools

# The Python that .venv is made from; another one: make install PYTHON=/path/to/python3.12
PYTHON ?= python3
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
PY := .venv/bin/python
ARGS ?=
# The environment of another Spark.
OTHER = $(CURDIR)/build/spark-$(VERSION)
# What of the installed packages is compiled when it is imported, as little of it ever is: two fifths of all sources.
RARELY := tests?|docutils|fontTools|moto|mypyc?|pip|pkg_resources|pygments|setuptools
# Tests run in as many processes as there are cores, and all of them in one more, as Spark's and the broker's wait.
# Each process that meets a Spark test starts a session of its own.
PARALLEL := --maxprocesses 4 --dist worksteal -n
MORE = $(shell $(PYTHON) -c 'import os; print(1 + os.cpu_count())')
KILLS ?= 60
# An archive of the classes that Spark loads: a JVM that finds it starts in a third of the time.
ARCHIVE := $(CURDIR)/.venv/classes.jsa
# Spark with folders for its zips, of which each Python process would compile PySpark anew: see conf/prepare.py.
LEAN := $(CURDIR)/.venv/spark
# Every test process and each Spark worker imports the package: compile it once, wherever bytecode is usually off.
unexport PYTHONDONTWRITEBYTECODE
run: export SPARK_SUBMIT_OPTS ?= -XX:SharedArchiveFile=$(ARCHIVE) -Xlog:disable
run: export SPARK_HOME ?= $(LEAN)

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

install: .venv/.jars ## make .venv with the project, its tools, and the jars of Delta and Kafka (once; later runs need no network)

run: install ## stream a real graph through loops, check the answer, draw it (a minute)
	@$(PY) -m timely_spark demo $(ARGS)

check: install ## run the fast tests: the pure parts, no Spark (under a minute)
	@$(PY) -m pytest $(PARALLEL) auto -m "not spark and not slow" $(ARGS)

test: install ## run all tests
	@$(PY) -m pytest $(PARALLEL) $(MORE) $(ARGS)

test-spark: check-tools ## run Spark's tests on another Spark, without Delta, which fits one only: make test-spark VERSION=4.3.0
	@[ -n "$(VERSION)" ] || { echo "which one? make test-spark VERSION=4.3.0" >&2; exit 1; }
	@[ -x $(OTHER)/bin/python ] || $(PYTHON) -m venv $(OTHER)
	@$(OTHER)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	@sed -E 's/"pyspark\[connect\][^"]*"/"pyspark[connect]==$(VERSION)"/' pyproject.toml > $(OTHER)/pyproject.toml
	@cd $(OTHER) && bin/python -m pip install --quiet --group dev numpy pyarrow 'pandas<3' 'deltalake>=1.6'
	@PYTHONPATH=$(CURDIR) $(OTHER)/bin/python -m pytest $(PARALLEL) $(MORE) -m spark $(ARGS)

lint: .venv/.installed ## ruff (rules and format) and mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

methods: install ## tell type checkers of the operators (timely_spark/methods.pyi), after adding one
	@$(PY) tests/test_methods.py

campaign: install ## the long randomised tests (an hour or two)
	@$(PY) -m pytest $(PARALLEL) auto --campaign -m campaign --timeout 3600 $(ARGS)

mutate: install ## change the code in small ways, and see whether the tests notice (one part: make mutate ARGS="times/")
	@$(PY) -m tests.mutate $(ARGS)

model: install ## explore all schedules and crashes of small flows (minutes; one model: make model ARGS="three epochs")
	@$(PY) tests/laws/test_model.py $(if $(ARGS),"$(ARGS)")

simulate: install ## crash and recover the simulator, STEPS=1000000 rounds of workers
	@$(PY) -m tests.support.simulate --steps $(or $(STEPS),1000000) $(ARGS)

chaos: install ## kill -9 at random steps, KILLS of them, and compare (hours for 1000)
	@$(PY) -m tests.support.campaign --kills $(KILLS) $(ARGS)

rings: install ## keep README's table of rings in SQL, by its commands, and check it (a minute)
	@$(PY) -m pytest -q tests/spark/test_pipeline.py -k readme

bench: install .venv/.bench ## measure against baselines, into benchmarks/results (one: make bench ARGS="round")
	@$(PY) -m benchmarks $(ARGS)

bench-quick: install .venv/.bench ## a part of it in three minutes, for a first impression
	@$(PY) -m benchmarks --quick $(ARGS)

docs: install .venv/.docs ## build the documentation site into build/site, with all links and references checked
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "build/site/index.html"

dist: install ## build wheel and source archive into dist/, and check them: contents, metadata, a clean install, the demo
	@tag="$$(git describe --tags --exact-match 2>/dev/null || true)"; version="v$$($(PY) -c 'import timely_spark; print(timely_spark.__version__)')"; \
	  [ -z "$$tag" ] || [ "$$tag" = "$$version" ] || { echo "the tag is $$tag, timely_spark.__version__ says $$version" >&2; exit 1; }
	@rm -rf dist
	@$(PY) -m build --no-isolation --outdir dist > /dev/null
	@$(PY) -m twine check --strict dist/*
	@DIST=$(CURDIR)/dist $(PY) -m pytest --campaign tests/test_packaging.py $(ARGS)

lock: ## choose the newest versions for development, within pyproject.toml (conf/requirements.lock); needs uv
	@uv pip compile pyproject.toml --group dev --all-extras --universal --python-version 3.10 --generate-hashes \
	  --upgrade --no-header --no-annotate --no-emit-index-url --quiet --output-file conf/requirements.lock

clean: ## remove caches and what runs leave behind (.venv stays: rm -rf .venv to start over)
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# One line that says what to install, before pip spends minutes.
check-tools:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "timely_spark needs Python 3.10 or newer with venv (Debian: apt install python3 python3-venv; another one: make install PYTHON=python3.12); found as '$(PYTHON)': $$($(PYTHON) -V 2>/dev/null || echo none)" >&2; exit 1; }
	@version="$$($(JAVA) -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' || true)"; \
	  [ "$${version:-0}" -ge 17 ] || { \
	  echo "timely_spark needs Java 17 or newer for Spark (Debian: apt install openjdk-17-jre-headless; or set JAVA_HOME); found as '$(JAVA)': $${version:-none}" >&2; exit 1; }

# Stamps: what was installed stays until pyproject.toml or the lock changes. --group needs pip 25.1.
.venv/.installed: pyproject.toml conf/requirements.lock | check-tools
	@[ -x $(PY) ] || $(PYTHON) -m venv .venv
	@$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	@echo "installing timely_spark and Spark into .venv (minutes the first time)"
	@printf '[bdist_wheel]\ncompression = stored\n' > .venv/wheel.cfg # of PySpark's sources, unpacked at once
	@awk '/^[^ ]/ { of = /^pyspark=/ ? "spark" : "others" } { print > (".venv/" of ".lock") }' conf/requirements.lock
	@pip="$(PY) -m pip install --quiet --no-compile --no-deps --require-hashes -r"; \
	  DIST_EXTRA_CONFIG=$(CURDIR)/.venv/wheel.cfg $$pip .venv/spark.lock & spark=$$!; $$pip .venv/others.lock; wait $$spark # side by side: half a minute less
	@$(PY) -m compileall -q -j 0 -x '/($(RARELY))/' .venv/lib > /dev/null || true # pip does it on one core, and all of it
	@$(PY) -m pip install --quiet --no-deps --editable .
	@touch $@

.venv/.jars: .venv/.installed conf/prepare.py timely_spark/runtime/prepare.py conf/jars.sha256 tests/support/broker.py
	@$(PY) -m pytest --collect-only -qq > /dev/null & $(PY) conf/prepare.py $(ARCHIVE) $(LEAN); wait # the tests, compiled once
	@$(PY) -m tests.support.broker
	@touch $@

# Only what builds the site needs this.
.venv/.docs: .venv/.installed
	@$(PY) -m pip install --quiet --group docs
	@touch $@

# Only what measures needs this.
.venv/.bench: .venv/.installed
	@$(PY) -m pip install --quiet --group bench
	@touch $@
