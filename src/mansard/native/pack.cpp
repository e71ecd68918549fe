// Decoders of the stored block formats, and the packing loop they share.
//
// A decoder turns one block of a row into codes with a scale and an offset for each group; K-quants keep their integer
// codes (nothing is expanded to 16 bits), with the products of their two-level scales as the groups' scales.
#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "lanes_portable.h"

namespace mansard {

namespace {

constexpr int kSuper = 256;  // columns in a K-quant block

struct Decoded {
  uint8_t codes[kSuper];
  float scale[kSuper / 16], offset[kSuper / 16];
};

struct Source {
  const char* name;
  int block, bytes;  // columns and bytes of a stored block
  Layout layout;
  int group;
  bool offset;
  int zero;
  void (*decode)(const uint8_t* p, Decoded& d);
  // The largest magnitude a scale or offset of the block may have; null: stored halves are kept as they are.
  float (*peak)(const uint8_t* p);
  const uint8_t* table;
};

float half_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return half_to_float(h);
}

void nibbles(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) codes[j] = qs[j] & 15, codes[j + 16] = qs[j] >> 4;
}

void decode_q4_0(const uint8_t* p, Decoded& d) { d.scale[0] = half_at(p); nibbles(p + 2, d.codes); }
void decode_q4_1(const uint8_t* p, Decoded& d) {
  d.scale[0] = half_at(p), d.offset[0] = half_at(p + 2);
  nibbles(p + 4, d.codes);
}
void five_bits(const uint8_t* qh, const uint8_t* qs, uint8_t* codes) {
  uint32_t high;
  std::memcpy(&high, qh, 4);
  nibbles(qs, codes);
  for (int j = 0; j < 32; ++j) codes[j] |= uint8_t(((high >> j) & 1) << 4);
}
void decode_q5_0(const uint8_t* p, Decoded& d) { d.scale[0] = half_at(p); five_bits(p + 2, p + 6, d.codes); }
void decode_q5_1(const uint8_t* p, Decoded& d) {
  d.scale[0] = half_at(p), d.offset[0] = half_at(p + 2);
  five_bits(p + 4, p + 8, d.codes);
}
void decode_q8_0(const uint8_t* p, Decoded& d) {
  d.scale[0] = half_at(p);
  for (int j = 0; j < 32; ++j) d.codes[j] = uint8_t(p[2 + j] ^ 0x80);
}

void decode_q2_k(const uint8_t* p, Decoded& d) {
  const uint8_t *scales = p, *qs = p + 16;
  const float dm = half_at(p + 80), dmin = half_at(p + 82);
  for (int g = 0; g < 16; ++g) {
    d.scale[g] = dm * float(scales[g] & 15);
    d.offset[g] = -dmin * float(scales[g] >> 4);
    const uint8_t* q = qs + (g / 8) * 32 + (g % 2) * 16;
    for (int l = 0; l < 16; ++l) d.codes[g * 16 + l] = (q[l] >> (2 * ((g % 8) / 2))) & 3;
  }
}

void decode_q3_k(const uint8_t* p, Decoded& d) {
  const uint8_t *hmask = p, *qs = p + 32, *packed = p + 96;
  const float dm = half_at(p + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int high = (packed[8 + g % 4] >> (2 * (g / 4))) & 3;
    d.scale[g] = dm * float((low | (high << 4)) - 32);
    const int shift = 2 * ((g % 8) / 2), bit = g / 8 * 4 + (g % 8) / 2;
    const uint8_t *q = qs + (g / 8) * 32 + (g % 2) * 16, *h = hmask + (g % 2) * 16;
    for (int l = 0; l < 16; ++l) d.codes[g * 16 + l] = uint8_t(((q[l] >> shift) & 3) | (((h[l] >> bit) & 1) << 2));
  }
}

// The eight 6-bit scales and minimums of Q4_K and Q5_K, packed in twelve bytes.
void k4_scales(const uint8_t* p, float dm, float dmin, Decoded& d) {
  for (int g = 0; g < 8; ++g) {
    int sc, m;
    if (g < 4) sc = p[g] & 63, m = p[g + 4] & 63;
    else sc = (p[g + 4] & 15) | ((p[g - 4] >> 6) << 4), m = (p[g + 4] >> 4) | ((p[g] >> 6) << 4);
    d.scale[g] = dm * float(sc);
    d.offset[g] = -dmin * float(m);
  }
}
void decode_q4_k(const uint8_t* p, Decoded& d) {
  k4_scales(p + 4, half_at(p), half_at(p + 2), d);
  const uint8_t* qs = p + 16;
  for (int g = 0; g < 8; ++g)
    for (int l = 0; l < 32; ++l) d.codes[g * 32 + l] = (qs[(g / 2) * 32 + l] >> (4 * (g % 2))) & 15;
}
void decode_q5_k(const uint8_t* p, Decoded& d) {
  k4_scales(p + 4, half_at(p), half_at(p + 2), d);
  const uint8_t *qh = p + 16, *qs = p + 48;
  for (int g = 0; g < 8; ++g)
    for (int l = 0; l < 32; ++l)
      d.codes[g * 32 + l] = uint8_t(((qs[(g / 2) * 32 + l] >> (4 * (g % 2))) & 15) | (((qh[l] >> g) & 1) << 4));
}
void decode_q6_k(const uint8_t* p, Decoded& d) {
  const uint8_t *ql = p, *qh = p + 128;
  const auto* scales = reinterpret_cast<const int8_t*>(p + 192);
  const float dm = half_at(p + 208);
  for (int g = 0; g < 16; ++g) d.scale[g] = dm * float(scales[g]);
  for (int c = 0; c < kSuper; ++c) {
    const int half = c / 128, quarter = (c % 128) / 32, l = c % 32;
    const uint8_t low = ql[half * 64 + (quarter % 2) * 32 + l], high = qh[half * 32 + l];
    d.codes[c] = uint8_t(((low >> (4 * (quarter / 2))) & 15) | (((high >> (2 * quarter)) & 3) << 4));
  }
}

// Values of a codebook, shifted by `zero` to be unsigned.
constexpr uint8_t kIq4Nl[16] = {0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240};  // + 127
constexpr uint8_t kFp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};                  // 2 · e2m1 + 12

float e8m0_half(uint8_t e) { return std::ldexp(1.f, int(e) - 128); }
void decode_mxfp4(const uint8_t* p, Decoded& d) { d.scale[0] = e8m0_half(p[0]); nibbles(p + 1, d.codes); }

float peak_q2_k(const uint8_t* p) { return 15 * std::max(std::fabs(half_at(p + 80)), std::fabs(half_at(p + 82))); }
float peak_q3_k(const uint8_t* p) { return 32 * std::fabs(half_at(p + 108)); }
float peak_k4(const uint8_t* p) { return 63 * std::max(std::fabs(half_at(p)), std::fabs(half_at(p + 2))); }
float peak_q6_k(const uint8_t* p) { return 128 * std::fabs(half_at(p + 208)); }
float peak_mxfp4(const uint8_t* p) { return e8m0_half(p[0]); }

constexpr Source kSources[] = {
    {"Q4_0", 32, 18, Layout::U4, 32, false, 8, decode_q4_0, nullptr, nullptr},
    {"Q4_1", 32, 20, Layout::U4, 32, true, 0, decode_q4_1, nullptr, nullptr},
    {"Q5_0", 32, 22, Layout::U8, 32, false, 16, decode_q5_0, nullptr, nullptr},
    {"Q5_1", 32, 24, Layout::U8, 32, true, 0, decode_q5_1, nullptr, nullptr},
    {"Q8_0", 32, 34, Layout::U8, 32, false, 128, decode_q8_0, nullptr, nullptr},
    {"Q2_K", 256, 84, Layout::U4, 16, true, 0, decode_q2_k, peak_q2_k, nullptr},
    {"Q3_K", 256, 110, Layout::U4, 16, false, 4, decode_q3_k, peak_q3_k, nullptr},
    {"Q4_K", 256, 144, Layout::U4, 32, true, 0, decode_q4_k, peak_k4, nullptr},
    {"Q5_K", 256, 176, Layout::U8, 32, true, 0, decode_q5_k, peak_k4, nullptr},
    {"Q6_K", 256, 210, Layout::U8, 16, false, 32, decode_q6_k, peak_q6_k, nullptr},
    {"IQ4_NL", 32, 18, Layout::U4, 32, false, 127, decode_q4_0, nullptr, kIq4Nl},
    {"MXFP4", 32, 17, Layout::U4, 32, false, 12, decode_mxfp4, peak_mxfp4, kFp4},
};

void write_group(const PackedWeight& w, uint8_t* group, int lane, const uint8_t* codes, float scale, float offset) {
  auto* halves = reinterpret_cast<uint16_t*>(group);
  halves[lane] = float_to_half(scale / w.out_scale);
  if (w.has_offset) halves[kLanes + lane] = float_to_half(offset / w.out_scale);
  uint8_t* out = group + (w.has_offset ? 64 : 32) + lane * 4;
  if (w.layout == Layout::U8) {
    for (int c = 0; c < w.group; c += 4) std::memcpy(out + (c / 4) * 64, codes + c, 4);
    return;
  }
  const int half = w.group / 2;
  for (int c = 0; c < half; ++c) out[(c / 4) * 64 + c % 4] = uint8_t(codes[c] | (codes[c + half] << 4));
}

void pack_grouped(PackedWeight& w, const Source& s, const uint8_t* data, int begin, int end) {
  const int blocks = w.columns / s.block, groups = s.block / s.group;
  const size_t row_bytes = size_t(blocks) * s.bytes, group_bytes = w.group_bytes();
  Decoded d{};
  for (int panel = begin; panel < end; ++panel) {
    uint8_t* out = w.data.get() + size_t(panel) * w.panel_bytes;
    for (int lane = 0; lane < kLanes && panel * kLanes + lane < w.rows; ++lane) {
      const uint8_t* row = data + size_t(panel * kLanes + lane) * row_bytes;
      for (int b = 0; b < blocks; ++b) {
        s.decode(row + size_t(b) * s.bytes, d);
        for (int g = 0; g < groups; ++g)
          write_group(w, out + size_t(b * groups + g) * group_bytes, lane, d.codes + g * s.group, d.scale[g], d.offset[g]);
      }
    }
  }
}

template <class T>
void pack_dense(PackedWeight& w, const uint8_t* data, int begin, int end) {
  for (int panel = begin; panel < end; ++panel) {
    T* out = reinterpret_cast<T*>(w.data.get() + size_t(panel) * w.panel_bytes);
    for (int lane = 0; lane < kLanes && panel * kLanes + lane < w.rows; ++lane) {
      const uint8_t* row = data + size_t(panel * kLanes + lane) * w.columns * sizeof(T);
      for (int k = 0; k < w.columns; ++k) std::memcpy(out + size_t(k) * kLanes + lane, row + k * sizeof(T), sizeof(T));
    }
  }
}

// The power of two that brings the tensor's largest scale to about 2^14, so that small ones keep their precision.
float range_scale(const Source& s, const uint8_t* data, size_t num_blocks) {
  float peak = 0.f;
  for (size_t i = 0; i < num_blocks; ++i) peak = std::max(peak, s.peak(data + i * s.bytes));
  if (!(peak > 0.f) || !std::isfinite(peak)) return 1.f;
  return std::ldexp(1.f, std::clamp(std::ilogb(peak) - 14, -120, 120));
}

std::unique_ptr<PackedWeight> make(Layout layout, int rows, int columns) {
  auto w = std::make_unique<PackedWeight>();
  w->layout = layout, w->rows = rows, w->columns = columns;
  return w;
}

void require(size_t have, size_t need, const std::string& format) {
  if (have != need)
    throw std::invalid_argument(format + " tensor has " + std::to_string(have) + " bytes; its shape needs " + std::to_string(need));
}

}  // namespace

std::unique_ptr<PackedWeight> pack(const std::string& format, const uint8_t* data, size_t num_bytes, int rows, int columns,
                                   ThreadPool& pool) {
  if (rows < 1 || columns < 1) throw std::invalid_argument("a weight needs at least one row and one column");
  const int element = format == "F32" ? 4 : format == "F16" || format == "BF16" ? 2 : 0;
  if (element) {
    require(num_bytes, size_t(rows) * columns * element, format);
    auto w = make(format == "F32" ? Layout::F32 : format == "F16" ? Layout::F16 : Layout::BF16, rows, columns);
    w->panel_bytes = size_t(columns) * kLanes * element;
    w->data = allocate(w->bytes());
    pool.run([&](int t) {
      const Share share(w->panels(), t, pool.size());
      if (element == 4) pack_dense<uint32_t>(*w, data, share.begin, share.end);
      else pack_dense<uint16_t>(*w, data, share.begin, share.end);
    });
    return w;
  }
  const auto* s = std::find_if(std::begin(kSources), std::end(kSources), [&](const Source& x) { return format == x.name; });
  if (s == std::end(kSources)) throw std::invalid_argument("the native executor has no layout for weights stored as " + format);
  if (columns % s->block)
    throw std::invalid_argument(format + " needs rows of a multiple of " + std::to_string(s->block) + " columns, not " + std::to_string(columns));
  const size_t num_blocks = size_t(rows) * (columns / s->block);
  require(num_bytes, num_blocks * s->bytes, format);
  auto w = make(s->layout, rows, columns);
  w->group = s->group, w->has_offset = s->offset, w->zero = s->zero;
  if (s->table) w->has_table = true, std::memcpy(w->table, s->table, 16);
  if (s->peak) w->out_scale = range_scale(*s, data, num_blocks);
  w->panel_bytes = w->group_bytes() * (columns / w->group);
  w->data = allocate(w->bytes());
  pool.run([&](int t) {
    const Share share(w->panels(), t, pool.size());
    pack_grouped(*w, *s, data, share.begin, share.end);
  });
  return w;
}

}  // namespace mansard
