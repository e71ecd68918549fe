// Weights as the kernels read them, and activations as they multiply them.
//
// A weight is cut into panels of 16 output rows; a panel is one strictly forward stream. Lane i of every vector is
// output row i, so a kernel keeps one output per lane and never reduces across lanes.
//
//   dense (f32, f16, bf16)   for k: 16 values
//   grouped (u8, u4)         for each group of `group` columns:
//                              16 half scales [, 16 half offsets], then for each 4 columns 64 code bytes
//                              (row-major within: lane · 4 + column); u4 packs the columns of the group's first half
//                              in the low nibbles and those of its second half in the high nibbles
//
// A grouped weight is w = scale · (code - zero) + offset, code being looked up in `table` first when there is one, so
// that Q4_0, Q4_1, K-quants, NF4-style codebooks and MXFP4 are one kernel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace mansard {

constexpr int kLanes = 16;
constexpr int kActivationGroup = 32;  // columns that share one activation scale

struct Unmap {
  size_t bytes = 0;
  void operator()(uint8_t* p) const;
};
using Buffer = std::unique_ptr<uint8_t[], Unmap>;

// Map zeroed memory, aligned for the widest vector. Pages come into being as they are touched, so an unused KV cache
// costs nothing; large buffers ask for huge pages.
Buffer allocate(size_t bytes);

enum class Layout : uint8_t { F32, F16, BF16, U8, U4 };

struct PackedWeight {
  Layout layout = Layout::F32;
  int rows = 0, columns = 0;
  int group = 32;           // grouped layouts: columns a scale covers, 16 or 32
  bool has_offset = false;  // grouped layouts
  bool has_table = false;   // U4
  int zero = 0;
  uint8_t table[16] = {};
  float out_scale = 1.f;  // a power of two that keeps the half scales in range
  size_t panel_bytes = 0;
  Buffer data;

  int panels() const { return (rows + kLanes - 1) / kLanes; }
  bool grouped() const { return layout == Layout::U8 || layout == Layout::U4; }
  size_t group_bytes() const {
    return size_t(kLanes) * 2 * (has_offset ? 2 : 1) + size_t(group) * (layout == Layout::U4 ? 8 : 16);
  }
  const uint8_t* panel(int p) const { return data.get() + size_t(p) * panel_bytes; }
  size_t bytes() const { return size_t(panels()) * panel_bytes; }
};

// Rows of quantized activations: value = scale[group] · q, with the sums of q over each 16 columns. q is one plane of
// int8, or two: 256 · high + low.
struct QuantizedRows {
  int8_t* q;    // the only or the high plane
  int8_t* low;  // null: one plane
  float* scale;
  int32_t* sums;
  int columns;
  int8_t* row(int r) const { return q + size_t(r) * columns; }
  int8_t* low_row(int r) const { return low ? low + size_t(r) * columns : nullptr; }
  float* scales(int r) const { return scale + size_t(r) * (columns / 32); }
  int32_t* row_sums(int r) const { return sums + size_t(r) * (columns / 16); }
};

}  // namespace mansard
