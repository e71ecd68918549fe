// The native executor's model: a program compiled to a list of ops over registers, and the paged KV cache.
//
// Every thread runs every op of a step on its share of the work and meets the others at a barrier; a whole step is one
// call from Python, made without the GIL.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace mansard {

struct SequenceInput {
  int first, count;       // its tokens among the step's
  int64_t position;       // of its first token
  const int32_t* blocks;  // its block table
};

struct StepInput {
  const int32_t* tokens;
  const int32_t* positions;
  int num_tokens;
  std::vector<SequenceInput> sequences;
  const int32_t* logit_rows;
  int num_logits;
  float* logits;  // [num_logits, vocab]
};

struct Register {
  int width, stride;  // floats; the stride is padded to whole cache lines
  Buffer data;
  float* row(int r) const { return reinterpret_cast<float*>(data.get()) + size_t(r) * stride; }
};

struct RopeTable {
  int rotary_dim, positions;
  std::vector<float> cos, sin;  // [positions, rotary_dim / 2]
};

// Rows of activations made ready for a linear op: as they are, or quantized to int8.
enum class Activations : uint8_t { Int8, Int16, Float32 };

struct ActivationScratch {
  std::vector<int8_t> q, low;
  std::vector<float> scale;
  std::vector<int32_t> sums;
  QuantizedRows reserve(int rows, int columns, bool two_planes);
};

class Model;

struct Op {
  virtual ~Op() = default;
  // Run this op's share for `thread`; ends with all of the op's work visible to all threads.
  virtual void run(Model& m, const StepInput& in, int thread) = 0;
  // Serial work before the step starts.
  virtual void prepare(Model&, const StepInput&) {}
};

struct ModelLimits {
  int max_tokens, max_positions, num_blocks;
};

class Model {
 public:
  Model(const Kernels* kernels, int num_threads, Activations activations, ModelLimits limits);

  int add_register(int width);
  int add_weight(const std::string& format, const uint8_t* data, size_t num_bytes, int rows, int columns);
  int add_rope(int rotary_dim, int positions, const float* cos, const float* sin);
  int add_kv_layer(KvFormat format, int heads, int dim);
  void add_op(std::unique_ptr<Op> op) { ops_.push_back(std::move(op)); }

  void step(const StepInput& in);
  // From now on add up the seconds of each op, as thread 0 sees them from one op's end to the next; resets the sums.
  void profile(bool on) { op_seconds_.assign(on ? ops_.size() : 0, 0.0); }
  const std::vector<double>& op_seconds() const { return op_seconds_; }
  void copy_block(int source, int destination);

  // out[rows] (op)= x[rows] · Wᵀ for all threads together; quantizes x when the weight is grouped. Ends without a
  // barrier. `row_of` maps output rows to rows of x (null: the same).
  void linear(const std::vector<int>& weights, const float* x, int x_stride, int rows, const int32_t* row_of, float* out,
              int out_stride, const float* bias, bool add, int thread);

  const Kernels& kernels() const { return *kernels_; }
  ThreadPool& pool() { return pool_; }
  void barrier() { pool_.barrier(); }
  float* row(int reg, int r) const { return registers_[reg].row(r); }
  int stride(int reg) const { return registers_[reg].stride; }
  int width(int reg) const { return registers_[reg].width; }
  int num_registers() const { return int(registers_.size()); }
  const PackedWeight& weight(int w) const { return *weights_[w]; }
  int num_weights() const { return int(weights_.size()); }
  const RopeTable& rope(int r) const { return ropes_[r]; }
  int num_ropes() const { return int(ropes_.size()); }
  const KvLayer& kv(int l) const { return kv_layers_[l]; }
  int num_kv_layers() const { return int(kv_layers_.size()); }
  const ModelLimits& limits() const { return limits_; }
  size_t weight_bytes() const;
  size_t kv_bytes() const { return kv_bytes_; }
  float* thread_floats(int thread, size_t count);

 private:
  void quantize_rows(const float* x, int x_stride, const int32_t* row_of, int begin, int end, const QuantizedRows& out) const;

  const Kernels* kernels_;
  ThreadPool pool_;
  const Activations activations_;
  const ModelLimits limits_;
  std::vector<Register> registers_;
  std::vector<std::unique_ptr<PackedWeight>> weights_;
  std::vector<RopeTable> ropes_;
  std::vector<KvLayer> kv_layers_;
  std::vector<Buffer> kv_data_;
  size_t kv_bytes_ = 0;
  std::vector<std::unique_ptr<Op>> ops_;
  ActivationScratch shared_activations_;
  std::vector<ActivationScratch> thread_activations_;
  std::vector<std::vector<float>> thread_floats_;
  int max_columns_ = 0;
  std::vector<double> op_seconds_;  // empty: not profiling
  std::mutex busy_;                 // one step at a time, whichever thread asks
};

}  // namespace mansard
