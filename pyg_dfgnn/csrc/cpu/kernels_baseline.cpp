// The kernels for any machine: 128-bit vectors.
#define DFGNN_ISA baseline
#include "kernels.inc"
