PYTHON ?= python

.PHONY: check test drill bench docs kernels

check:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

# Plants faults one by one, in a copy, and sees that a test catches each; takes a quarter of an hour.
drill:
	$(PYTHON) -m tests.drill

bench:
	$(PYTHON) benchmarks/cpu.py

# What every kernel takes and moves, from its machine code and from the interpreter.
kernels:
	$(PYTHON) -m gpu.report benchmarks/results/gpu.json > docs/kernels.md

# Regenerates what is generated, then runs every example that a page or a docstring shows.
docs:
	$(PYTHON) -m golden conventions > docs/conventions.md
	$(PYTHON) -m docs.ops > docs/ops.md
	$(PYTHON) -m pytest README.md docs refimpl golden
