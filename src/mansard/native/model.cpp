// The model's storage, its linear product over packed weights and the step loop.
#include "model.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "pack.h"

namespace mansard {

Buffer allocate(size_t bytes) {
  constexpr size_t huge = size_t(2) << 20;
  const size_t size = std::max<size_t>(bytes, 64);
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  if (size >= huge) madvise(p, size, MADV_HUGEPAGE);
#endif
  return Buffer(static_cast<uint8_t*>(p), Unmap{size});
}

void Unmap::operator()(uint8_t* p) const { munmap(p, bytes); }

QuantizedRows ActivationScratch::reserve(int rows, int columns, bool two_planes) {
  const size_t n = size_t(rows) * columns;
  if (q.size() < n) q.resize(n), low.resize(two_planes ? n : 0), scale.resize(n / 32), sums.resize(n / 16);
  return {q.data(), two_planes ? low.data() : nullptr, scale.data(), sums.data(), columns};
}

Model::Model(const Kernels* kernels, int num_threads, Activations activations, ModelLimits limits)
    : kernels_(kernels), pool_(num_threads), activations_(activations), limits_(limits), thread_activations_(num_threads), thread_floats_(num_threads) {}

int Model::add_register(int width) {
  const int stride = (width + kLanes - 1) / kLanes * kLanes;
  registers_.push_back({width, stride, allocate(size_t(limits_.max_tokens) * stride * sizeof(float))});
  return int(registers_.size()) - 1;
}

int Model::add_weight(const std::string& format, const uint8_t* data, size_t num_bytes, int rows, int columns) {
  weights_.push_back(pack(format, data, num_bytes, rows, columns, pool_));
  if (weights_.back()->grouped()) max_columns_ = std::max(max_columns_, columns);
  return int(weights_.size()) - 1;
}

int Model::add_rope(int rotary_dim, int positions, const float* cos, const float* sin) {
  const size_t n = size_t(positions) * (rotary_dim / 2);
  ropes_.push_back({rotary_dim, positions, {cos, cos + n}, {sin, sin + n}});
  return int(ropes_.size()) - 1;
}

int Model::add_kv_layer(KvFormat format, int heads, int dim) {
  KvLayer l{};
  l.format = format, l.heads = heads, l.dim = dim, l.padded_dim = (dim + kLanes - 1) / kLanes * kLanes;
  const size_t values = size_t(l.padded_dim) * kBlock;
  l.tile_bytes = format == KvFormat::F32 ? values * 4 : format == KvFormat::I8 ? values : format == KvFormat::I4 ? values / 2 : values * 2;
  const size_t tiles = size_t(limits_.num_blocks) * heads;
  auto add = [&](size_t bytes) {
    kv_data_.push_back(allocate(bytes));
    kv_bytes_ += bytes;
    return kv_data_.back().get();
  };
  l.k = add(tiles * l.tile_bytes);
  l.v = add(tiles * l.tile_bytes);
  l.tile_scales = format == KvFormat::I8 ? kBlock : format == KvFormat::I4 ? 2 * kBlock : 0;
  if (l.tile_scales) {
    l.k_scale = reinterpret_cast<float*>(add(tiles * l.tile_scales * sizeof(float)));
    l.v_scale = reinterpret_cast<float*>(add(tiles * l.tile_scales * sizeof(float)));
  }
  kv_layers_.push_back(l);
  return int(kv_layers_.size()) - 1;
}

size_t Model::weight_bytes() const {
  size_t n = 0;
  for (const auto& w : weights_) n += w->bytes();
  return n;
}

float* Model::thread_floats(int thread, size_t count) {
  auto& v = thread_floats_[thread];
  if (v.size() < count) v.resize(count);
  return v.data();
}

void Model::copy_block(int source, int destination) {
  for (const KvLayer& l : kv_layers_) {
    const size_t bytes = l.tile_bytes * l.heads;
    std::memcpy(l.k_tile(destination, 0), l.k_tile(source, 0), bytes);
    std::memcpy(l.v_tile(destination, 0), l.v_tile(source, 0), bytes);
    if (!l.k_scale) continue;
    std::memcpy(l.k_scales(destination, 0), l.k_scales(source, 0), size_t(l.heads) * l.tile_scales * sizeof(float));
    std::memcpy(l.v_scales(destination, 0), l.v_scales(source, 0), size_t(l.heads) * l.tile_scales * sizeof(float));
  }
}

void Model::quantize_rows(const float* x, int x_stride, const int32_t* row_of, int begin, int end, const QuantizedRows& out) const {
  for (int r = begin; r < end; ++r)
    kernels_->quantize(x + size_t(row_of ? row_of[r] : r) * x_stride, out.columns, out.row(r), out.low_row(r), out.scales(r), out.row_sums(r));
}

void Model::linear(const std::vector<int>& weights, const float* x, int x_stride, int rows, const int32_t* row_of, float* out,
                   int out_stride, const float* bias, bool add, int thread) {
  // A few values are quantized by every thread for itself, which is cheaper than meeting at a barrier.
  constexpr int redundant = 8192;
  const bool exact = activations_ == Activations::Float32, two_planes = activations_ == Activations::Int16;
  const int threads = pool_.size(), columns = weight(weights[0]).columns;
  bool any_grouped = false, any_dense = false;
  int total = 0;
  for (int w : weights) {
    const bool quantized = weight(w).grouped() && !exact;
    any_grouped |= quantized, any_dense |= !quantized;
    total += weight(w).panels();
  }
  QuantizedRows q{};
  if (any_grouped) {
    if (threads == 1 || rows * columns <= redundant) {
      q = thread_activations_[thread].reserve(rows, columns, two_planes);
      quantize_rows(x, x_stride, row_of, 0, rows, q);
    } else {
      if (thread == 0) shared_activations_.reserve(limits_.max_tokens, max_columns_, two_planes);
      barrier();
      q = shared_activations_.reserve(rows, columns, two_planes);
      const Share share(rows, thread, threads);
      quantize_rows(x, x_stride, row_of, share.begin, share.end, q);
      barrier();
    }
  }
  if (any_dense && row_of) {  // gather the rows once for each thread
    float* gathered = thread_floats(thread, size_t(rows) * columns);
    for (int r = 0; r < rows; ++r) std::memcpy(gathered + size_t(r) * columns, x + size_t(row_of[r]) * x_stride, size_t(columns) * 4);
    x = gathered, x_stride = columns;
  }
  const Share share(total, thread, threads);
  int first = 0, column = 0;
  for (int id : weights) {
    const PackedWeight& w = weight(id);
    const int begin = std::max(share.begin, first) - first, end = std::min(share.end, first + w.panels()) - first;
    if (begin < end) {
      LinearArgs a;
      a.weight = &w, a.x = x, a.x_stride = x_stride, a.q = w.grouped() && !exact ? &q : nullptr, a.rows = rows;
      a.out = out + column, a.out_stride = out_stride, a.bias = bias ? bias + column : nullptr, a.add = add;
      kernels_->linear(a, begin, end);
    }
    first += w.panels(), column += w.rows;
  }
}

void Model::step(const StepInput& in) {
  const std::lock_guard<std::mutex> lock(busy_);
  for (auto& op : ops_) op->prepare(*this, in);
  pool_.run([&](int thread) {
    if (thread > 0 || op_seconds_.empty()) {
      for (auto& op : ops_) op->run(*this, in, thread);
      return;
    }
    auto last = std::chrono::steady_clock::now();
    for (size_t i = 0; i < ops_.size(); ++i) {
      ops_[i]->run(*this, in, thread);
      const auto now = std::chrono::steady_clock::now();
      op_seconds_[i] += std::chrono::duration<double>(now - last).count();
      last = now;
    }
  });
}

}  // namespace mansard
