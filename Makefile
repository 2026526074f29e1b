# Every target that needs the environment makes it: a machine with Python 3.11 (venv included) and make will do.
#   PYTHON              the interpreter the environment is made from
#   FOLDFX_TORCH_INDEX  a further package index for torch, such as https://download.pytorch.org/whl/cpu
PYTHON ?= python3.11
TORCH := torch==2.13.0

BIN := .venv/bin
READY := .venv/.ready
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet --quiet
TORCH_INDEX := $(if $(FOLDFX_TORCH_INDEX),--extra-index-url $(FOLDFX_TORCH_INDEX))
WHEEL_ENV := build/wheel-env

FUZZ_MODELS ?= 5000
FUZZ_SEED ?= 0

.PHONY: help setup test fuzz soundness demo lint dist clean

help:
	@echo 'make test   run the tests'
	@echo 'make fuzz   run 5,000 random models: FUZZ_MODELS=… how many, FUZZ_SEED=… which'
	@echo 'make soundness  write docs/soundness.md: which check rejects which mutant'
	@echo 'make demo   fold a trained model and show the report'
	@echo 'make lint   ruff and mypy'
	@echo 'make dist   build the sdist and the wheel, and try the wheel in an empty environment'
	@echo 'make setup  only make the environment, .venv'
	@echo 'make clean  remove everything that the other targets made'

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) $(TORCH_INDEX) $(TORCH)
	$(BIN)/python $(PIP_INSTALL) $(TORCH_INDEX) $(TORCH) --editable '.[dev]'
	touch $@

test: $(READY)
	$(BIN)/python -m pytest

fuzz: $(READY)
	FOLDFX_FUZZ_MODELS=$(FUZZ_MODELS) FOLDFX_FUZZ_SEED=$(FUZZ_SEED) $(BIN)/python -m pytest -n 2 -rP -p no:logging tests/fuzz

soundness: $(READY)
	$(BIN)/python -m tests.mutants.suite.soundness

demo: $(READY)
	$(BIN)/foldfx demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy -p foldfx

# What the wheel must hold is read from pyproject.toml and the tree; then every package is imported from the wheel.
define CHECK_WHEEL
import importlib, pathlib, sys, tomllib, zipfile
(wheel,) = pathlib.Path("dist").glob("*.whl")
setuptools = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["tool"]["setuptools"]
packages = setuptools["packages"]
patterns = [(name, pattern) for name in packages for pattern in ("*.py", *setuptools["package-data"].get(name, ()))]
files = [file for name, pattern in patterns for file in pathlib.Path(*name.split(".")[1:]).glob(pattern)]
expected = {f"foldfx/{file.as_posix()}" for file in files}
held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
if held != expected:
    sys.exit(f"{wheel} lacks {sorted(expected - held)} and should not hold {sorted(held - expected)}")
for name in packages:
    module = importlib.import_module(name)
    if "site-packages" not in module.__file__:
        sys.exit(f"{name} was imported from {module.__file__}, not from the wheel")
print(f"{wheel}: {len(held)} files, {len(packages)} packages import")
endef
export CHECK_WHEEL

dist: $(READY)
	rm -rf dist $(WHEEL_ENV)
	$(BIN)/python -m build --quiet --outdir dist .
	$(PYTHON) -m venv $(WHEEL_ENV)
	$(WHEEL_ENV)/bin/python $(PIP_INSTALL) $(TORCH_INDEX) $(TORCH) dist/*.whl
	$(WHEEL_ENV)/bin/python -I -c "$$CHECK_WHEEL"
	$(WHEEL_ENV)/bin/foldfx --help
	rm -rf $(WHEEL_ENV)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
