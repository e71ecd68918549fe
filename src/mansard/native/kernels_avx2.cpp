// The kernels for avx2.
#include "lanes_portable.h"
#include "lanes_avx2.h"

#include "kernel_table.h"

namespace mansard {
const Kernels* avx2_kernels() { return kernel_table<LanesAvx2>(); }
}  // namespace mansard
