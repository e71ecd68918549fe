// The kernels for avx512.
#include "lanes_portable.h"
#include "lanes_avx512.h"

#include "kernel_table.h"

namespace mansard {
const Kernels* avx512_kernels() { return kernel_table<LanesAvx512>(); }
}  // namespace mansard
