// The kernels for AVX2, FMA and F16C (Haswell, 2013; Zen, 2017). Empty for other architectures.
#if defined(__x86_64__)
#define DFGNN_ISA avx2
#include "kernels.inc"
#endif
