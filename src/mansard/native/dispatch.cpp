// Choose the kernels once, by what this processor and operating system can run.
#include <cstring>
#include <initializer_list>

#include "kernels.h"

namespace mansard {

namespace {
bool runs(const char* isa) {
  if (!std::strcmp(isa, "portable")) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!std::strcmp(isa, "avx2")) return avx2;
  if (!std::strcmp(isa, "avx512"))
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#endif
  return false;
}

const Kernels* table(const char* isa) {
#if defined(__x86_64__)
  if (!std::strcmp(isa, "avx512")) return avx512_kernels();
  if (!std::strcmp(isa, "avx2")) return avx2_kernels();
#endif
  return portable_kernels();
}
}  // namespace

const Kernels* choose_kernels(const char* isa) {
  if (isa && *isa) return runs(isa) ? table(isa) : nullptr;
  for (const char* best : {"avx512", "avx2"}) if (runs(best)) return table(best);
  return portable_kernels();
}

}  // namespace mansard
