// The kernels for portable.
#include "lanes_portable.h"

#include "kernel_table.h"

namespace mansard {
const Kernels* portable_kernels() { return kernel_table<LanesPortable>(); }
}  // namespace mansard
