// Attention within tiles of sparse graphs, a block a tile: matrices of the tile's nodes pass through shared memory in
// chunks of features, and what edges gather they gather from there, so that every row of K and V is read from memory
// once, whatever the degrees.
//
// In shared memory lie, too, the tile's edges and a number or two for each (resident_slices.cuh).
#pragma once

#include "resident_dots.cuh"
#include "resident_sums.cuh"
#include "resident_terms.cuh"
