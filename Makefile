# Two commands do everything: `make demo` and `make test`. Both make .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where it is set, as in many containers, every process of every run compiles rollcall's sources anew.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Debian packages that some tests need; installed only where this runs as root on Debian.
SYSTEM_PACKAGES := openmpi-bin openssh-server openssh-client slurm-wlm munge rsync iproute2 util-linux hostname \
	libopenmpi-dev chromium tmux

.PHONY: setup demo test lint bench bench-hosts bench-record bench-explain bench-report bench-train bench-rehearse bench-rehearse-order bench-rehearse-bugs soak corpus rehearse-corpus fuzz-explain looks compat matrix lab-pages wheel clean

setup: $(VENV)/.setup

# What is C++ is compiled meanwhile. It goes without a compiler, only slower.
$(VENV)/.setup: pyproject.toml constraints.txt $(shell find src -name "*.cpp" -o -name "*.h")
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy
	PYTHONPATH=src $(BIN)/python -m rollcall.native & $(PIP) --editable '.[demo]' && { wait; touch $@; }

$(VENV)/.dev: $(VENV)/.setup
	$(PIP) --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/rollcall demo

# More workers than cores: many tests wait for a limit to pass, as for a host that is not heard of.
test: $(VENV)/.dev lint
	tools/system-packages $(SYSTEM_PACKAGES)
	$(BIN)/python -m pytest -n 4 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --cache-dir .mypy_cache/import-linter

# make bench BENCH='--only memory' runs a part of it.
PEERS_VENV := .venv-peers
PEERS_PIP := $(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt --constraint benchmarks/constraints-peers.txt

bench: $(VENV)/.dev $(PEERS_VENV)/.setup
	$(BIN)/python benchmarks/launch.py $(BENCH)

# Many hosts. They are network namespaces: this needs root.
bench-hosts: $(VENV)/.dev $(PEERS_VENV)/.setup
	tools/system-packages $(SYSTEM_PACKAGES)
	$(BIN)/python benchmarks/hosts.py $(BENCH)

# What recording costs, and how long it takes to explain big runs.
bench-record: $(VENV)/.dev
	$(BIN)/python benchmarks/record.py $(BENCH)

bench-explain: $(VENV)/.dev
	$(BIN)/python benchmarks/explain.py $(BENCH)

bench-report: $(VENV)/.dev
	tools/system-packages $(SYSTEM_PACKAGES)
	$(BIN)/python benchmarks/report.py $(BENCH)

bench-train: $(VENV)/.dev $(PEERS_VENV)/.setup
	$(BIN)/python benchmarks/train.py $(BENCH)

# What a rehearsal says, beside reality.
bench-rehearse: $(VENV)/.dev
	$(BIN)/python benchmarks/rehearse.py $(BENCH)

# The launchers that we compare with. Torch comes first, so that nothing pulls another one; and where they cannot
# be installed, the benchmark goes on without them.
$(PEERS_VENV)/.setup: benchmarks/constraints-peers.txt constraints.txt
	-$(PYTHON) -m venv $(PEERS_VENV) && \
	$(PEERS_PIP) torch numpy && \
	$(PEERS_PIP) accelerate lightning torchrunx --editable . && \
	touch $@

# The tests with hosts and faults, again and again: what is flaky shows.
SOAK ?= 20
soak: $(VENV)/.dev
	tools/system-packages $(SYSTEM_PACKAGES)
	for round in $$(seq $(SOAK)); do echo "round $$round of $(SOAK)"; \
		$(BIN)/python -m pytest -n 2 -q -x tests/faults tests/hosts || exit 1; done

# How many of the planted bugs are named: kind, ranks and line; and whether a correct twin is blamed.
# make corpus PEERS=1 runs TORCH_DISTRIBUTED_DEBUG=DETAIL and torchfrtrace on the same programs.
corpus: $(VENV)/.dev
	$(BIN)/python -m tests.explain.corpus $(if $(PEERS),--peers)

# The same bugs, rehearsed: before the programs ever run on real ranks.
rehearse-corpus: $(VENV)/.dev
	$(BIN)/python -m tests.rehearse.corpus $(WORDS)

# Rehearsed ranks against real gloo ranks, op by op, on the programs of benchmarks/programs/rehearsed.
bench-rehearse-order: $(VENV)/.dev
	$(BIN)/python -m benchmarks.rehearse_order $(BENCH)

# Bugs that only some of 1,024 ranks have.
bench-rehearse-bugs: $(VENV)/.dev
	$(BIN)/python -m benchmarks.rehearse_bugs $(BENCH)

# Generated programs, correct and with one bug each: how many bugs explain names. What failed is in .rollcall/fuzz.
# make fuzz-explain SEED=17 runs one seed again, and keeps its scripts and run folders.
N ?= 100
fuzz-explain: $(VENV)/.dev
	$(BIN)/python -m benchmarks.fuzz $(if $(SEED),--seed $(SEED),$(N)) $(FUZZ)

# Looks at healthy jobs while they run: no finding may come of it.
LOOKS ?= 10000
looks: $(VENV)/.dev
	$(BIN)/python benchmarks/looks.py --looks $(LOOKS) --ranks 8

# Programs of others under torchrun and under rollcall run, and torch's own tests with and without recording; an hour.
# make compat COMPAT='--only lightning' runs a part of it.
COMPAT_VENV := .venv-compat
COMPAT_PIP := $(COMPAT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

compat: $(COMPAT_VENV)/.setup
	$(COMPAT_VENV)/bin/python benchmarks/frameworks.py $(COMPAT)

$(COMPAT_VENV)/.setup: benchmarks/constraints-frameworks.txt benchmarks/constraints-peers.txt constraints.txt
	$(PYTHON) -m venv $(COMPAT_VENV)
	$(COMPAT_PIP) torch numpy
	$(COMPAT_PIP) --constraint benchmarks/constraints-peers.txt --constraint benchmarks/constraints-frameworks.txt \
		accelerate lightning transformers pytorch-ignite expecttest --editable .
	-$(COMPAT_PIP) --constraint benchmarks/constraints-frameworks.txt deepspeed
	touch $@

# Several versions of torch and Python, each in an environment of its own: docs/compatibility.md. Not a part of `make test`: it
# downloads gigabytes. make matrix MATRIX='--only 2.9.1' tries one.
matrix:
	$(PYTHON) tools/matrix.py $(MATRIX)

# The pages of docs/lab, with their pictures and numbers, from runs on this machine.
lab-pages: $(VENV)/.dev
	$(BIN)/python -m rollcall.lab.runner.pages

# What pip installs elsewhere: dist/torch_rollcall-*.whl. The C++ sources are inside; compiled files are not.
wheel: $(VENV)/.dev
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf $(VENV) .venv-peers .venv-compat .rollcall dist
