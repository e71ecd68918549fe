// The table of kernels; one per ISA, chosen once. Every kernel is defined by mansard.runtime.reference.
//
// Batch invariance: a kernel computes each row of its output by the same sequence of floating-point operations
// whatever rows stand beside it, so a request's result does not depend on its neighbours.
#pragma once
#include <cstdint>

#include "packed.h"

namespace mansard {

enum class ActivationKind : uint8_t { Silu, GeluTanh, Gelu, Relu, Relu2, SwigluOai };
enum class KvFormat : uint8_t { F32, F16, BF16, I8, I4 };

constexpr int kBlock = 16;       // tokens in a KV block: one lane each
constexpr int kChunk = 64;       // tokens between two updates of the running softmax
constexpr int kSegment = 256;    // tokens one attention work item reads

struct LinearArgs {
  const PackedWeight* weight;
  const float* x = nullptr;          // [rows, x_stride] float activations, or
  int x_stride = 0;
  const QuantizedRows* q = nullptr;  // quantized ones
  int rows = 0;
  float* out = nullptr;              // [rows, out_stride]; column 0 is the weight's row 0
  int out_stride = 0;
  const float* bias = nullptr;
  bool add = false;
};

// One layer's KV cache. K blocks are stored transposed, [block][head][D][16 tokens], so that scores of sixteen tokens
// are sixteen lanes; V blocks are [block][head][16 tokens][D]. D is padded to whole lanes. I8 has a float scale for each
// token and head, [block][head][16]; I4 a scale and a minimum, [block][head][2][16], and packs dimensions 2i and 2i + 1
// into one byte.
struct KvLayer {
  KvFormat format;
  int heads, dim, padded_dim;
  uint8_t *k, *v;
  float *k_scale, *v_scale;
  size_t tile_bytes;    // bytes of one (block, head) tile of K or of V
  int tile_scales;      // floats of one tile's scales and minimums
  uint8_t* k_tile(int64_t block, int head) const { return k + (size_t(block) * heads + head) * tile_bytes; }
  uint8_t* v_tile(int64_t block, int head) const { return v + (size_t(block) * heads + head) * tile_bytes; }
  float* k_scales(int64_t block, int head) const { return k_scale + (size_t(block) * heads + head) * tile_scales; }
  float* v_scales(int64_t block, int head) const { return v_scale + (size_t(block) * heads + head) * tile_scales; }
};

// Queries of one sequence and one KV head against the tokens [begin, end) of the sequence.
struct AttendArgs {
  const KvLayer* kv;
  int kv_head;
  const int32_t* block_table;
  const float* q;        // token 0's first query head of this KV head
  int q_stride;          // floats between tokens
  int num_tokens, heads_per_kv;
  int64_t position;      // of token 0
  int64_t begin, end;    // a segment, aligned to kSegment at its start
  int64_t window, chunk;  // 0: none
  float scale, softcap;  // softcap 0: none
  float* acc;            // [num_tokens · heads_per_kv, padded_dim] unnormalized
  float* max;            // [num_tokens · heads_per_kv]
  float* sum;
  float* scratch;        // attend_scratch(rows, padded_dim) floats
};

static inline size_t attend_scratch(int rows, int padded_dim) {
  return size_t(rows) * (padded_dim + kChunk) + size_t(kChunk) * padded_dim;
}

struct Kernels {
  const char* isa;
  // Quantize a row to one plane (low null) or two planes of int8.
  void (*quantize)(const float* x, int columns, int8_t* q, int8_t* low, float* scale, int32_t* sums);
  void (*linear)(const LinearArgs& args, int panel_begin, int panel_end);
  void (*dequantize_row)(const PackedWeight& w, int row, float* out);
  // out = x / rms(x) · w, or out += …; w already holds the 1 of Gemma's unit offset.
  void (*rms_norm)(const float* x, const float* w, int n, float eps, float* out, bool add);
  // Rotate one head in place; cos and sin have rotary_dim / 2 values.
  void (*rope_head)(float* x, int rotary_dim, const float* cos, const float* sin);
  void (*store_kv)(const KvLayer& kv, int64_t block, int slot, int head, const float* k, const float* v);
  void (*gated)(const float* gate, const float* up, int n, ActivationKind act, float limit, float* out);
  void (*attend)(const AttendArgs& args);
  void (*softcap)(float* x, int n, float scale, float cap);
  // y += a · x
  void (*axpy)(float a, const float* x, int n, float* y);
  // Ceilings; see probes.h.
  float (*probe_fma)(int64_t iterations);
  float (*probe_dot)(int64_t iterations);
  float (*probe_read)(const uint8_t* p, size_t bytes);
};

const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

// The best table this machine can run, or the one named ("portable", "avx2", "avx512"); null if it cannot run here.
const Kernels* choose_kernels(const char* isa);

}  // namespace mansard
