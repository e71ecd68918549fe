// Instantiate every kernel for one lane type.
#pragma once
#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "probes.h"

namespace mansard {

template <class L>
const Kernels* kernel_table() {
  static const Kernels table = {L::name,       quantize<L>, linear<L>, dequantize_row<L>, rms_norm<L>, rope_head<L>,
                                store_kv<L>,   gated<L>,    attend<L>, softcap<L>,        axpy<L>,
                                probe_fma<L>,  probe_dot<L>, probe_read<L>};
  return &table;
}

}  // namespace mansard
