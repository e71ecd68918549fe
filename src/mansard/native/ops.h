// The ops of a compiled program; each is defined by mansard.runtime.reference.
#pragma once
#include <atomic>

#include "model.h"

namespace mansard {

struct EmbedOp : Op {
  int out, weight;
  float scale;
  void run(Model& m, const StepInput& in, int thread) override;
};

struct RmsNormOp : Op {
  int in_reg, out_reg;
  std::vector<float> weight;
  float eps;
  bool add;
  void run(Model& m, const StepInput& in, int thread) override;
};

struct LinearOp : Op {
  int in_reg, out_reg;
  std::vector<int> weights;
  std::vector<float> bias;  // empty: none
  bool add;
  void run(Model& m, const StepInput& in, int thread) override;
};

struct RopeOp : Op {
  int qkv, kv_layer, rope;  // rope -1: no rotation
  int num_heads, num_kv_heads, dim;
  std::vector<float> q_norm, k_norm;
  float eps;
  void run(Model& m, const StepInput& in, int thread) override;
};

struct AttentionOp : Op {
  int qkv, out_reg, kv_layer;
  int num_heads, num_kv_heads, dim;
  float scale, softcap;
  int64_t window, chunk;
  std::vector<float> sinks;
  void prepare(Model& m, const StepInput& in) override;
  void run(Model& m, const StepInput& in, int thread) override;

 private:
  struct Item { int sequence, kv_head, first, count, segment; };
  struct Tile { int sequence, kv_head, first, count, item, segments; };
  void attend(Model& m, const StepInput& in, const Item& item, float* partial, int thread) const;
  void combine(Model& m, const Tile& tile) const;
  int rows_per_item() const;
  size_t partial_floats(int padded_dim) const { return size_t(rows_per_item()) * (padded_dim + 2); }

  std::vector<Item> items_;
  std::vector<Tile> tiles_;
  std::vector<float> partials_;
  std::atomic<int> next_{0};
};

struct GatedOp : Op {
  int in_reg, out_reg, size;
  ActivationKind activation;
  bool gated;
  float limit;
  void run(Model& m, const StepInput& in, int thread) override;
};

// output (+)= input · sigmoid(gate), the gate being one value a token or as wide as the input.
struct SigmoidGateOp : Op {
  int in_reg, gate_reg, out_reg;
  bool add;
  void run(Model& m, const StepInput& in, int thread) override;
};

struct LogitsOp : Op {
  int in_reg, weight;
  float scale, softcap;
  void run(Model& m, const StepInput& in, int thread) override;
};

enum class Scoring : uint8_t { Softmax, Sigmoid, SoftmaxAfterTopK };

struct MoeOp : Op {
  int in_reg, out_reg, router;
  std::vector<int> gate, up, down;  // one weight for each expert
  std::vector<float> router_bias, correction_bias, gate_bias, up_bias, down_bias;
  int top_k, size, num_groups, topk_groups;
  Scoring scoring;
  bool normalize, add;
  float scaling, limit;
  ActivationKind activation;
  void run(Model& m, const StepInput& in, int thread) override;

 private:
  void route(const float* logits, int token);

  struct Choice { int token; float weight; };
  std::vector<float> logits_, hidden_, result_;
  std::vector<std::vector<Choice>> chosen_;  // by expert
  std::vector<std::vector<int32_t>> rows_;
};

}  // namespace mansard
