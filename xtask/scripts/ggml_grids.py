"""Writes kernels/src/decode/ggml/grids.bin: the grids of ggml's types IQ1, IQ2 and IQ3, as its Python package has them.

    pip install gguf==0.19.0
    python3 xtask/scripts/ggml_grids.py kernels/src/decode/ggml/grids.bin

A row is 16 bits, little-endian: the first element in the lowest bits, two bits an element in grids of eight elements a
row, three in those of four, which say which of the grid's levels it is.
"""

import sys

import numpy
from gguf import quants

grids = []
for kind in (quants.IQ1_S, quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S):
    kind.init_grid()
    rows = kind.grid.reshape(kind.grid_shape)
    levels = numpy.array(kind.grid_map)
    indices = (rows[..., None] == levels).argmax(axis=-1).astype(numpy.uint16)
    width = 2 if kind.grid_shape[1] == 8 else 3
    shifts = width * numpy.arange(kind.grid_shape[1], dtype=numpy.uint16)
    grids.append((indices << shifts).sum(axis=1).astype("<u2"))
with open(sys.argv[1], "wb") as file:
    file.write(numpy.concatenate(grids).tobytes())
