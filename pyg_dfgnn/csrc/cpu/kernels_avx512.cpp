// The kernels for AVX-512 F, BW, DQ and VL (Skylake-SP, 2017; Zen 4, 2022). Empty for other architectures.
#if defined(__x86_64__)
#define DFGNN_ISA avx512
#include "kernels.inc"
#endif
