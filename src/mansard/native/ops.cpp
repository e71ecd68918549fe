// How each op shares its work between threads.
#include "ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mansard {

void EmbedOp::run(Model& m, const StepInput& in, int thread) {
  const Share share(in.num_tokens, thread, m.pool().size());
  for (int t = share.begin; t < share.end; ++t) {
    float* x = m.row(out, t);
    m.kernels().dequantize_row(m.weight(weight), in.tokens[t], x);
    if (scale != 1.f) m.kernels().softcap(x, m.width(out), scale, 0.f);
  }
  m.barrier();
}

void RmsNormOp::run(Model& m, const StepInput& in, int thread) {
  const Share share(in.num_tokens, thread, m.pool().size());
  for (int t = share.begin; t < share.end; ++t)
    m.kernels().rms_norm(m.row(in_reg, t), weight.data(), int(weight.size()), eps, m.row(out_reg, t), add);
  m.barrier();
}

void LinearOp::run(Model& m, const StepInput& in, int thread) {
  m.linear(weights, m.row(in_reg, 0), m.stride(in_reg), in.num_tokens, nullptr, m.row(out_reg, 0), m.stride(out_reg),
           bias.empty() ? nullptr : bias.data(), add, thread);
  m.barrier();
}

// Rotate a head by the orthonormal Walsh-Hadamard matrix, which spreads an outlier over all dimensions and leaves dot
// products between two rotated heads as they are (QuaRot, arXiv 2404.00456). dim is a power of two.
static void hadamard(float* x, int dim) {
  for (int half = 1; half < dim; half *= 2)
    for (int i = 0; i < dim; i += 2 * half)
      for (int j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b, x[j + half] = a - b;
      }
  const float scale = 1.f / std::sqrt(float(dim));
  for (int i = 0; i < dim; ++i) x[i] *= scale;
}

void RopeOp::run(Model& m, const StepInput& in, int thread) {
  const KvLayer& kv = m.kv(kv_layer);
  const Kernels& k = m.kernels();
  const int heads = num_heads + num_kv_heads;
  const Share share(in.num_tokens * heads, thread, m.pool().size());
  for (int i = share.begin; i < share.end; ++i) {
    const int token = i / heads, head = i % heads, position = in.positions[token];
    const bool is_k = head >= num_heads;
    float* x = m.row(qkv, token) + size_t(head) * dim;
    const auto& norm = is_k ? k_norm : q_norm;
    if (!norm.empty()) k.rms_norm(x, norm.data(), dim, eps, x, false);
    if (rope >= 0) {
      const RopeTable& table = m.rope(rope);
      const size_t at = size_t(position) * (table.rotary_dim / 2);
      k.rope_head(x, table.rotary_dim, table.cos.data() + at, table.sin.data() + at);
    }
    if (kv.format == KvFormat::I4 && (dim & (dim - 1)) == 0) hadamard(x, dim);
    if (!is_k) continue;
    const auto sequence = std::prev(std::upper_bound(in.sequences.begin(), in.sequences.end(), token,
                                                     [](int t, const SequenceInput& s) { return t < s.first; }));
    k.store_kv(kv, sequence->blocks[position / kBlock], position % kBlock, head - num_heads, x, x + size_t(num_kv_heads) * dim);
  }
  m.barrier();
}

int AttentionOp::rows_per_item() const {
  const int group = num_heads / num_kv_heads;
  return std::max(1, 16 / group) * group;
}

void AttentionOp::prepare(Model& m, const StepInput& in) {
  items_.clear(), tiles_.clear();
  const int tokens_per_item = rows_per_item() / (num_heads / num_kv_heads);
  for (int s = 0; s < int(in.sequences.size()); ++s) {
    const SequenceInput& seq = in.sequences[s];
    for (int first = 0; first < seq.count; first += tokens_per_item) {
      const int count = std::min(tokens_per_item, seq.count - first);
      const int64_t position = seq.position + first, end = position + count;
      int64_t low = window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
      if (chunk > 0) low = std::max(low, position / chunk * chunk);
      const int begin_segment = int(low / kSegment), end_segment = int((end + kSegment - 1) / kSegment);
      for (int head = 0; head < num_kv_heads; ++head) {
        tiles_.push_back({s, head, first, count, int(items_.size()), end_segment - begin_segment});
        for (int g = begin_segment; g < end_segment; ++g) items_.push_back({s, head, first, count, g});
      }
    }
  }
  const size_t need = items_.size() * partial_floats(m.kv(kv_layer).padded_dim);
  if (partials_.size() < need) partials_.resize(need);
  next_ = 0;
}

void AttentionOp::attend(Model& m, const StepInput& in, const Item& item, float* partial, int thread) const {
  const KvLayer& kv = m.kv(kv_layer);
  const SequenceInput& seq = in.sequences[item.sequence];
  const int rows = rows_per_item(), group = num_heads / num_kv_heads;
  AttendArgs a;
  a.kv = &kv, a.kv_head = item.kv_head, a.block_table = seq.blocks;
  a.q = m.row(qkv, seq.first + item.first) + size_t(item.kv_head) * group * dim, a.q_stride = m.stride(qkv);
  a.num_tokens = item.count, a.heads_per_kv = group, a.position = seq.position + item.first;
  a.begin = int64_t(item.segment) * kSegment, a.end = a.begin + kSegment;
  a.window = window, a.chunk = chunk, a.scale = scale, a.softcap = softcap;
  a.acc = partial, a.max = partial + size_t(rows) * kv.padded_dim, a.sum = a.max + rows;
  a.scratch = m.thread_floats(thread, attend_scratch(rows, kv.padded_dim));
  m.kernels().attend(a);
}

// Merge a tile's segments, in order, into the output register.
void AttentionOp::combine(Model& m, const Tile& tile) const {
  const int rows = rows_per_item(), group = num_heads / num_kv_heads, pd = m.kv(kv_layer).padded_dim;
  const size_t size = partial_floats(pd);
  const float* base = partials_.data() + tile.item * size;
  for (int r = 0; r < tile.count * group; ++r) {
    const int head = tile.kv_head * group + r % group;
    float peak = sinks.empty() ? -std::numeric_limits<float>::infinity() : sinks[head];
    for (int s = 0; s < tile.segments; ++s) peak = std::max(peak, base[s * size + size_t(rows) * pd + r]);
    float total = sinks.empty() ? 0.f : std::exp(sinks[head] - peak);
    float* out = m.row(out_reg, tile.first + r / group) + size_t(head) * dim;
    std::fill(out, out + dim, 0.f);
    for (int s = 0; s < tile.segments; ++s) {
      const float* p = base + s * size;
      const float w = std::exp(p[size_t(rows) * pd + r] - peak);
      if (w == 0.f) continue;
      total += w * p[size_t(rows) * (pd + 1) + r];
      m.kernels().axpy(w, p + size_t(r) * pd, dim, out);
    }
    m.kernels().softcap(out, dim, 1.f / total, 0.f);
  }
}

void AttentionOp::run(Model& m, const StepInput& in, int thread) {
  const size_t size = partial_floats(m.kv(kv_layer).padded_dim);
  for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < int(items_.size());)
    attend(m, in, items_[i], partials_.data() + i * size, thread);
  m.barrier();
  const Share share(int(tiles_.size()), thread, m.pool().size());
  for (int i = share.begin; i < share.end; ++i) {
    Tile tile = tiles_[i];
    tile.first += in.sequences[tile.sequence].first;
    combine(m, tile);
  }
  m.barrier();
}

void GatedOp::run(Model& m, const StepInput& in, int thread) {
  // Cut the rows' columns into pieces, so that even one row is shared.
  const int pieces = std::max(1, size / 256);
  const Share share(in.num_tokens * pieces, thread, m.pool().size());
  for (int i = share.begin; i < share.end; ++i) {
    const float* x = m.row(in_reg, i / pieces);
    const Share columns(size / kLanes, i % pieces, pieces);
    const int begin = columns.begin * kLanes, end = i % pieces == pieces - 1 ? size : columns.end * kLanes;
    m.kernels().gated(x + begin, gated ? x + size + begin : nullptr, end - begin, activation, limit, m.row(out_reg, i / pieces) + begin);
  }
  m.barrier();
}

void SigmoidGateOp::run(Model& m, const StepInput& in, int thread) {
  const int size = m.width(out_reg), gate_size = m.width(gate_reg);
  const Share share(in.num_tokens, thread, m.pool().size());
  for (int t = share.begin; t < share.end; ++t) {
    const float *x = m.row(in_reg, t), *gate = m.row(gate_reg, t);
    float* out = m.row(out_reg, t);
    for (int i = 0; i < size; ++i) {
      const float y = x[i] / (1.f + std::exp(-gate[gate_size == 1 ? 0 : i]));
      out[i] = add ? out[i] + y : y;
    }
  }
  m.barrier();
}

void LogitsOp::run(Model& m, const StepInput& in, int thread) {
  if (in.num_logits == 0) return;
  const int vocab = m.weight(weight).rows;
  m.linear({weight}, m.row(in_reg, 0), m.stride(in_reg), in.num_logits, in.logit_rows, in.logits, vocab, nullptr, false, thread);
  m.barrier();
  if (scale == 1.f && softcap == 0.f) return;
  const Share share(in.num_logits, thread, m.pool().size());
  for (int r = share.begin; r < share.end; ++r) m.kernels().softcap(in.logits + size_t(r) * vocab, vocab, scale, softcap);
  m.barrier();
}

}  // namespace mansard
