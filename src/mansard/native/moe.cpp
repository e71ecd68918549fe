// Mixture of experts: route, run each chosen expert on its tokens, add up by expert in order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops.h"

namespace mansard {

namespace {
void softmax(std::vector<float>& v) {
  const float peak = *std::max_element(v.begin(), v.end());
  float total = 0.f;
  for (float& x : v) x = std::exp(x - peak), total += x;
  for (float& x : v) x /= total;
}

// The k best of v, ties to the lower index.
std::vector<int> best(const std::vector<float>& v, int k) {
  std::vector<int> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](int a, int b) { return v[a] > v[b] || (v[a] == v[b] && a < b); });
  order.resize(size_t(k));
  return order;
}
}  // namespace

void MoeOp::route(const float* logits, int token) {
  const int experts = int(gate.size());
  std::vector<float> score(logits, logits + experts);
  if (scoring == Scoring::Softmax) softmax(score);
  if (scoring == Scoring::Sigmoid) for (float& s : score) s = 1.f / (1.f + std::exp(-s));
  std::vector<float> choice = score;
  if (!correction_bias.empty()) for (int e = 0; e < experts; ++e) choice[e] += correction_bias[e];
  if (num_groups > 1) {
    const int per_group = experts / num_groups;
    std::vector<float> group(num_groups);
    for (int g = 0; g < num_groups; ++g) {
      std::vector<float> members(choice.begin() + g * per_group, choice.begin() + (g + 1) * per_group);
      const auto top = best(members, correction_bias.empty() ? 1 : std::min(2, per_group));
      for (int i : top) group[g] += members[i];
    }
    const auto kept = best(group, topk_groups);
    for (int e = 0; e < experts; ++e)
      if (std::find(kept.begin(), kept.end(), e / per_group) == kept.end()) choice[e] = -std::numeric_limits<float>::infinity();
  }
  std::vector<int> top = best(choice, top_k);
  std::vector<float> weight;
  for (int e : top) weight.push_back(score[e]);
  if (scoring == Scoring::SoftmaxAfterTopK) softmax(weight);
  else if (normalize) {
    const float total = std::accumulate(weight.begin(), weight.end(), 0.f);
    for (float& w : weight) w /= total;
  }
  for (int i = 0; i < top_k; ++i) {
    chosen_[top[i]].push_back({token, weight[i] * scaling});
    rows_[top[i]].push_back(token);
  }
}

void MoeOp::run(Model& m, const StepInput& in, int thread) {
  const int experts = int(gate.size()), threads = m.pool().size(), hidden = m.width(in_reg);
  if (thread == 0) {
    chosen_.assign(experts, {});
    rows_.assign(experts, {});
    logits_.resize(size_t(in.num_tokens) * experts);
    hidden_.resize(size_t(in.num_tokens) * 2 * size);
    result_.resize(size_t(in.num_tokens) * hidden);
    if (!add) for (int t = 0; t < in.num_tokens; ++t) std::fill(m.row(out_reg, t), m.row(out_reg, t) + hidden, 0.f);
  }
  m.barrier();
  m.linear({router}, m.row(in_reg, 0), m.stride(in_reg), in.num_tokens, nullptr, logits_.data(), experts,
           router_bias.empty() ? nullptr : router_bias.data(), false, thread);
  m.barrier();
  if (thread == 0) for (int t = 0; t < in.num_tokens; ++t) route(logits_.data() + size_t(t) * experts, t);
  m.barrier();
  const int stride = 2 * size;
  for (int e = 0; e < experts; ++e) {
    const int n = int(rows_[e].size());
    if (n == 0) continue;
    const auto bias = [&](const std::vector<float>& b, int width) { return b.empty() ? nullptr : b.data() + size_t(e) * width; };
    m.linear({gate[e]}, m.row(in_reg, 0), m.stride(in_reg), n, rows_[e].data(), hidden_.data(), stride, bias(gate_bias, size), false, thread);
    m.linear({up[e]}, m.row(in_reg, 0), m.stride(in_reg), n, rows_[e].data(), hidden_.data() + size, stride, bias(up_bias, size), false, thread);
    m.barrier();
    const Share share(n, thread, threads);
    for (int r = share.begin; r < share.end; ++r) {
      float* h = hidden_.data() + size_t(r) * stride;
      m.kernels().gated(h, h + size, size, activation, limit, h);
    }
    m.barrier();
    m.linear({down[e]}, hidden_.data(), stride, n, nullptr, result_.data(), hidden, bias(down_bias, hidden), false, thread);
    m.barrier();
    for (int r = share.begin; r < share.end; ++r)
      m.kernels().axpy(chosen_[e][r].weight, result_.data() + size_t(r) * hidden, hidden, m.row(out_reg, chosen_[e][r].token));
    m.barrier();
  }
}

}  // namespace mansard
