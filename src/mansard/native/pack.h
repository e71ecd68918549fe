// Packing: from a file's rows to the panels that kernels read.
#pragma once
#include <string>

#include "packed.h"
#include "thread_pool.h"

namespace mansard {

// Pack `rows` × `columns` values stored row by row in `format` (a GGUF type name or F32, F16, BF16).
// Throws std::invalid_argument for an unknown format, a size that does not fit it or too few bytes.
std::unique_ptr<PackedWeight> pack(const std::string& format, const uint8_t* data, size_t num_bytes, int rows, int columns,
                                   ThreadPool& pool);

}  // namespace mansard
