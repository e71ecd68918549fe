// The Python module `mansard._native`: builds a Model op by op and runs steps. Every shape, index and range is checked
// here, so that nothing beyond this file reads memory on somebody's word.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops.h"
#include "probes.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace mansard;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using LogitsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr int kMaxThreads = 512;

void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

std::string range(const char* what, int64_t value, int64_t limit) {
  return std::string(what) + " " + std::to_string(value) + " is outside [0, " + std::to_string(limit) + ")";
}

void in_range(const char* what, int64_t value, int64_t limit) {
  if (value < 0 || value >= limit) throw std::invalid_argument(range(what, value, limit));
}

std::vector<float> copy(const std::optional<Floats>& a, size_t size, const char* what) {
  if (!a) return {};
  require(a->shape(0) == size, std::string(what) + " has " + std::to_string(a->shape(0)) + " values; " + std::to_string(size) + " are needed");
  return {a->data(), a->data() + size};
}

ActivationKind activation(const std::string& name) {
  if (name == "silu") return ActivationKind::Silu;
  if (name == "gelu_tanh") return ActivationKind::GeluTanh;
  if (name == "gelu") return ActivationKind::Gelu;
  if (name == "relu") return ActivationKind::Relu;
  if (name == "relu2") return ActivationKind::Relu2;
  if (name == "swiglu_oai") return ActivationKind::SwigluOai;
  throw std::invalid_argument("unknown activation " + name);
}

Activations activation_kind(const std::string& name) {
  if (name == "int8") return Activations::Int8;
  if (name == "int16") return Activations::Int16;
  if (name == "float32") return Activations::Float32;
  throw std::invalid_argument("unknown activation format " + name + "; known: int8, int16, float32");
}

KvFormat kv_format(const std::string& name) {
  if (name == "f32") return KvFormat::F32;
  if (name == "f16") return KvFormat::F16;
  if (name == "bf16") return KvFormat::BF16;
  if (name == "int8") return KvFormat::I8;
  if (name == "int4") return KvFormat::I4;
  throw std::invalid_argument("unknown KV-cache format " + name + "; known: f32, f16, bf16, int8, int4");
}

struct NativeModel : Model {
  NativeModel(const std::string& isa, int num_threads, const std::string& activations, int max_tokens, int max_positions, int num_blocks)
      : Model(kernels_or_throw(isa), checked_threads(num_threads), activation_kind(activations), {max_tokens, max_positions, num_blocks}) {
    require(max_tokens > 0 && max_positions > 0 && num_blocks > 0, "max_tokens, max_positions and num_blocks must be positive");
  }

  static int checked_threads(int n) {
    require(n > 0 && n <= kMaxThreads, range("number of threads", n, kMaxThreads + 1));
    return n;
  }
  static const Kernels* kernels_or_throw(const std::string& isa) {
    const Kernels* k = choose_kernels(isa.c_str());
    require(k, "this processor cannot run the " + isa + " kernels");
    return k;
  }

  void check_register(int r, int64_t width, const char* what) const {
    in_range(what, r, num_registers());
    require(width < 0 || this->width(r) == width, std::string(what) + " register is " + std::to_string(this->width(r)) +
                                                      " wide; the op needs " + std::to_string(width));
  }
  void check_weight(int w, int rows, int columns) const {
    in_range("weight", w, num_weights());
    require((rows < 0 || weight(w).rows == rows) && (columns < 0 || weight(w).columns == columns),
            "weight is " + std::to_string(weight(w).rows) + " x " + std::to_string(weight(w).columns) + "; the op needs " +
                std::to_string(rows) + " x " + std::to_string(columns));
  }

  int weight_from(const std::string& format, Bytes data, int rows, int columns) {
    nb::gil_scoped_release release;
    return add_weight(format, data.data(), data.shape(0), rows, columns);
  }
  int rope_from(int rotary_dim, Table cos, Table sin) {
    require(rotary_dim > 0 && rotary_dim % 2 == 0, "rotary_dim must be positive and even");
    for (const Table& t : {cos, sin})
      require(int(t.shape(0)) >= limits().max_positions && int(t.shape(1)) == rotary_dim / 2, "rope table has the wrong shape");
    return add_rope(rotary_dim, int(cos.shape(0)), cos.data(), sin.data());
  }
  int kv_from(const std::string& format, int heads, int dim) {
    require(heads > 0 && dim > 0 && dim <= 1024, "a KV layer needs 1 or more heads of 1 to 1,024 dimensions");
    require(format != "int4" || dim % 2 == 0, "an int4 KV cache needs an even head dimension");
    return add_kv_layer(kv_format(format), heads, dim);
  }

  void embed(int out, int weight_id, float scale) {
    check_register(out, -1, "output");
    check_weight(weight_id, -1, width(out));
    auto op = std::make_unique<EmbedOp>();
    op->out = out, op->weight = weight_id, op->scale = scale;
    vocabulary_ = vocabulary_ ? std::min(vocabulary_, weight(weight_id).rows) : weight(weight_id).rows;
    add_op(std::move(op));
  }
  void rms_norm(int in, int out, Floats w, float eps, bool add) {
    check_register(in, int64_t(w.shape(0)), "input");
    check_register(out, int64_t(w.shape(0)), "output");
    auto op = std::make_unique<RmsNormOp>();
    op->in_reg = in, op->out_reg = out, op->weight = copy(w, w.shape(0), "weight"), op->eps = eps, op->add = add;
    add_op(std::move(op));
  }
  void linear_op(int in, int out, const std::vector<int>& weights, const std::optional<Floats>& bias, bool add) {
    require(!weights.empty() && in != out, "a linear op needs a weight, and another register for its output");
    check_register(in, -1, "input");
    int rows = 0;
    for (int w : weights) check_weight(w, -1, width(in)), rows += weight(w).rows;
    check_register(out, rows, "output");
    auto op = std::make_unique<LinearOp>();
    op->in_reg = in, op->out_reg = out, op->weights = weights, op->bias = copy(bias, size_t(rows), "bias"), op->add = add;
    add_op(std::move(op));
  }
  void rope_op(int qkv, int kv_layer, int rope, int num_heads, int num_kv_heads, int dim, const std::optional<Floats>& q_norm,
               const std::optional<Floats>& k_norm, float eps) {
    check_attention(qkv, kv_layer, num_heads, num_kv_heads, dim);
    require(rope == -1 || (rope >= 0 && rope < num_ropes() && this->rope(rope).rotary_dim <= dim), "no such rope table for this head");
    auto op = std::make_unique<RopeOp>();
    op->qkv = qkv, op->kv_layer = kv_layer, op->rope = rope;
    op->num_heads = num_heads, op->num_kv_heads = num_kv_heads, op->dim = dim, op->eps = eps;
    op->q_norm = copy(q_norm, size_t(dim), "q_norm"), op->k_norm = copy(k_norm, size_t(dim), "k_norm");
    add_op(std::move(op));
  }
  void attention_op(int qkv, int out, int kv_layer, int num_heads, int num_kv_heads, int dim, float scale, int64_t window,
                    int64_t chunk, float softcap, const std::optional<Floats>& sinks) {
    check_attention(qkv, kv_layer, num_heads, num_kv_heads, dim);
    check_register(out, int64_t(num_heads) * dim, "output");
    require(window >= 0 && chunk >= 0 && softcap >= 0, "window, chunk and softcap must not be negative");
    auto op = std::make_unique<AttentionOp>();
    op->qkv = qkv, op->out_reg = out, op->kv_layer = kv_layer;
    op->num_heads = num_heads, op->num_kv_heads = num_kv_heads, op->dim = dim;
    op->scale = scale, op->softcap = softcap, op->window = window, op->chunk = chunk;
    op->sinks = copy(sinks, size_t(num_heads), "sinks");
    add_op(std::move(op));
  }
  void gated_op(int in, int out, const std::string& act, bool gated, float limit) {
    check_register(out, -1, "output");
    check_register(in, int64_t(width(out)) * (gated ? 2 : 1), "input");
    auto op = std::make_unique<GatedOp>();
    op->in_reg = in, op->out_reg = out, op->size = width(out), op->activation = activation(act), op->gated = gated, op->limit = limit;
    add_op(std::move(op));
  }
  void sigmoid_gate_op(int in, int gate, int out, bool add) {
    check_register(out, -1, "output");
    check_register(in, width(out), "input");
    check_register(gate, -1, "gate");
    require(width(gate) == 1 || width(gate) == width(out), "a gate is one value a token or as wide as its input");
    auto op = std::make_unique<SigmoidGateOp>();
    op->in_reg = in, op->gate_reg = gate, op->out_reg = out, op->add = add;
    add_op(std::move(op));
  }
  void logits_op(int in, int weight_id, float scale, float softcap) {
    check_register(in, -1, "input");
    check_weight(weight_id, -1, width(in));
    require(num_logit_columns_ == 0, "a program has one op for logits");
    auto op = std::make_unique<LogitsOp>();
    op->in_reg = in, op->weight = weight_id, op->scale = scale, op->softcap = softcap;
    num_logit_columns_ = weight(weight_id).rows, logits_input_ = in;
    add_op(std::move(op));
  }
  void moe_op(int in, int out, int router, const std::vector<int>& gate, const std::vector<int>& up, const std::vector<int>& down,
              int top_k, const std::string& act, const std::string& scoring, bool normalize, bool add, float scaling, float limit,
              const std::optional<Floats>& router_bias, const std::optional<Floats>& correction_bias,
              const std::optional<Floats>& gate_bias, const std::optional<Floats>& up_bias, const std::optional<Floats>& down_bias,
              int num_groups, int topk_groups) {
    check_register(in, -1, "input");
    check_register(out, width(in), "output");
    const int experts = int(gate.size()), hidden = width(in);
    require(experts > 0 && up.size() == gate.size() && down.size() == gate.size(), "gate, up and down need one weight an expert");
    require(top_k > 0 && top_k <= experts, range("top_k", top_k, experts + 1));
    require(num_groups > 0 && experts % num_groups == 0 && topk_groups > 0 && topk_groups <= num_groups &&
                top_k <= topk_groups * (experts / num_groups), "expert groups do not fit the number of experts");
    check_weight(router, experts, hidden);
    check_weight(gate[0], -1, hidden);
    const int size = weight(gate[0]).rows;
    for (int e = 0; e < experts; ++e) check_weight(gate[e], size, hidden), check_weight(up[e], size, hidden), check_weight(down[e], hidden, size);
    auto op = std::make_unique<MoeOp>();
    op->in_reg = in, op->out_reg = out, op->router = router, op->gate = gate, op->up = up, op->down = down;
    op->top_k = top_k, op->size = size, op->activation = activation(act), op->normalize = normalize, op->add = add;
    require(scoring == "softmax" || scoring == "sigmoid" || scoring == "softmax_after_topk", "unknown scoring " + scoring);
    op->scoring = scoring == "softmax" ? Scoring::Softmax : scoring == "sigmoid" ? Scoring::Sigmoid : Scoring::SoftmaxAfterTopK;
    op->scaling = scaling, op->limit = limit, op->num_groups = num_groups, op->topk_groups = topk_groups;
    op->router_bias = copy(router_bias, experts, "router_bias"), op->correction_bias = copy(correction_bias, experts, "correction_bias");
    op->gate_bias = copy(gate_bias, size_t(experts) * size, "gate_bias"), op->up_bias = copy(up_bias, size_t(experts) * size, "up_bias");
    op->down_bias = copy(down_bias, size_t(experts) * hidden, "down_bias");
    add_op(std::move(op));
  }

  // firsts and counts: [S] each sequence's tokens; table_ends: [S] running end of its block table in blocks.
  void run_step(Ints tokens, Ints positions, Ints counts, Ints table_ends, Ints blocks, Ints logit_rows, LogitsOut logits) {
    StepInput in{};
    in.tokens = tokens.data(), in.positions = positions.data(), in.num_tokens = int(tokens.shape(0));
    require(in.num_tokens > 0 && in.num_tokens <= limits().max_tokens, range("number of tokens", in.num_tokens, limits().max_tokens + 1));
    require(positions.shape(0) == tokens.shape(0) && table_ends.shape(0) == counts.shape(0), "step arrays differ in length");
    for (int t = 0; t < in.num_tokens; ++t) {
      if (vocabulary_ > 0) in_range("token id", in.tokens[t], vocabulary_);  // no embedding: tokens are not looked at
      in_range("position", in.positions[t], limits().max_positions);
    }
    for (size_t b = 0; b < blocks.shape(0); ++b) in_range("block", blocks.data()[b], limits().num_blocks);
    int first = 0, table = 0;
    for (size_t s = 0; s < counts.shape(0); ++s) {
      const int count = counts.data()[s], end = table_ends.data()[s];
      require(count > 0 && count <= in.num_tokens - first, "sequence token counts do not fit the step");
      require(end >= table && end <= int(blocks.shape(0)), "block tables do not fit the step");
      const int64_t position = in.positions[first];
      require((position + count + kBlock - 1) / kBlock <= end - table, "a sequence's block table is shorter than its tokens");
      for (int t = 1; t < count; ++t) require(in.positions[first + t] == position + t, "positions of a sequence must follow each other");
      in.sequences.push_back({first, count, position, blocks.data() + table});
      first += count, table = end;
    }
    require(first == in.num_tokens, "sequence token counts do not add up to the step's tokens");
    in.logit_rows = logit_rows.data(), in.num_logits = int(logit_rows.shape(0)), in.logits = logits.data();
    require(logits.shape(0) == logit_rows.shape(0) && (in.num_logits == 0 || int(logits.shape(1)) == num_logit_columns_), "logits have the wrong shape");
    for (int r = 0; r < in.num_logits; ++r) in_range("logit row", in.logit_rows[r], in.num_tokens);
    nb::gil_scoped_release release;
    step(in);
  }
  // out: [N, hidden] rows first … first + N - 1 of what the last step gave its logits: the states behind the final norm.
  void hidden_states(int first, LogitsOut out) const {
    require(logits_input_ >= 0, "the program has no logits");
    require(int(out.shape(1)) == width(logits_input_), "hidden states have the wrong width");
    require(first >= 0 && int64_t(first) + int64_t(out.shape(0)) <= limits().max_tokens, "hidden states out of range");
    for (size_t r = 0; r < out.shape(0); ++r)
      std::copy_n(row(logits_input_, first + int(r)), width(logits_input_), out.data() + r * out.shape(1));
  }
  void copy_blocks(int source, int destination) {
    in_range("block", source, limits().num_blocks);
    in_range("block", destination, limits().num_blocks);
    copy_block(source, destination);
  }

 private:
  void check_attention(int qkv, int kv_layer, int num_heads, int num_kv_heads, int dim) const {
    in_range("KV layer", kv_layer, num_kv_layers());
    require(kv(kv_layer).heads == num_kv_heads && kv(kv_layer).dim == dim, "the op's heads differ from its KV layer's");
    require(num_heads > 0 && num_heads % num_kv_heads == 0, "query heads must be a multiple of KV heads");
    check_register(qkv, int64_t(num_heads + 2 * num_kv_heads) * dim, "qkv");
  }
  int vocabulary_ = 0, num_logit_columns_ = 0, logits_input_ = -1;
};

// Seconds that the slowest of `threads` threads needs for its share of `job`, at best of `repeats`.
template <class Job>
double best_seconds(ThreadPool& pool, int repeats, Job job) {
  double best = 1e30;
  for (int r = 0; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(job);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

double read_rate(const std::string& isa, int threads, size_t bytes, int repeats) {
  const Kernels* k = NativeModel::kernels_or_throw(isa);
  NativeModel::checked_threads(threads);
  require(repeats > 0 && repeats <= 1000, range("repeats", repeats, 1001));
  const size_t share = bytes / threads / 4096 * 4096;
  require(share > 0 && bytes <= (size_t(1) << 36), "each thread needs 4 KiB or more to read, all together 64 GiB at most");
  nb::gil_scoped_release release;
  ThreadPool pool(threads);
  const Buffer data = allocate(share * threads);
  volatile float sink = 0.f;
  const auto job = [&](int t) { sink = k->probe_read(data.get() + t * share, share); };
  pool.run([&](int t) { std::memset(data.get() + t * share, 1, share); });
  return double(share) * threads / best_seconds(pool, repeats, job);
}

double operation_rate(const std::string& isa, int threads, const std::string& kind, int repeats) {
  const Kernels* k = NativeModel::kernels_or_throw(isa);
  require(kind == "fma" || kind == "dot", "kind must be fma or dot");
  NativeModel::checked_threads(threads);
  require(repeats > 0 && repeats <= 1000, range("repeats", repeats, 1001));
  nb::gil_scoped_release release;
  ThreadPool pool(threads);
  constexpr int64_t iterations = 200000;
  volatile float sink = 0.f;
  const bool fma = kind == "fma";
  const auto job = [&](int) { sink = fma ? k->probe_fma(iterations) : k->probe_dot(iterations); };
  return double(iterations) * kChains * 2 * (fma ? 16 : 64) * threads / best_seconds(pool, repeats, job);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native executor: packed weights, paged KV cache and whole steps in C++.";
  m.attr("BLOCK_SIZE") = kBlock;
  m.def("isas", [] {
    std::vector<std::string> names;
    for (const char* isa : {"portable", "avx2", "avx512"}) if (choose_kernels(isa)) names.push_back(isa);
    return names;
  }, "The kernel sets this processor can run, slowest first.");
  m.def("read_rate", &read_rate, "isa"_a, "threads"_a, "bytes"_a, "repeats"_a, "Best bytes/s of reading a buffer in four streams a thread.");
  m.def("operation_rate", &operation_rate, "isa"_a, "threads"_a, "kind"_a, "repeats"_a,
        "Best operations/s of fused multiply-adds (fma) or int8 dot products (dot) from registers.");
  nb::class_<NativeModel>(m, "Model")
      .def(nb::init<const std::string&, int, const std::string&, int, int, int>(), "isa"_a, "num_threads"_a, "activations"_a, "max_tokens"_a,
           "max_positions"_a, "num_blocks"_a)
      .def("add_register", [](NativeModel& s, int width) { require(width > 0, "a register needs a width"); return s.add_register(width); }, "width"_a)
      .def("add_weight", &NativeModel::weight_from, "format"_a, "data"_a, "rows"_a, "columns"_a)
      .def("add_rope", &NativeModel::rope_from, "rotary_dim"_a, "cos"_a, "sin"_a)
      .def("add_kv_layer", &NativeModel::kv_from, "format"_a, "heads"_a, "dim"_a)
      .def("embed", &NativeModel::embed, "output"_a, "weight"_a, "scale"_a)
      .def("rms_norm", &NativeModel::rms_norm, "input"_a, "output"_a, "weight"_a, "eps"_a, "add"_a)
      .def("linear", &NativeModel::linear_op, "input"_a, "output"_a, "weights"_a, "bias"_a.none(), "add"_a)
      .def("rope_and_cache", &NativeModel::rope_op, "qkv"_a, "kv_layer"_a, "rope"_a, "num_heads"_a, "num_kv_heads"_a, "dim"_a,
           "q_norm"_a.none(), "k_norm"_a.none(), "eps"_a)
      .def("attention", &NativeModel::attention_op, "qkv"_a, "output"_a, "kv_layer"_a, "num_heads"_a, "num_kv_heads"_a, "dim"_a,
           "scale"_a, "window"_a, "chunk"_a, "softcap"_a, "sinks"_a.none())
      .def("gated_activation", &NativeModel::gated_op, "input"_a, "output"_a, "activation"_a, "gated"_a, "limit"_a)
      .def("moe", &NativeModel::moe_op, "input"_a, "output"_a, "router"_a, "gate"_a, "up"_a, "down"_a, "top_k"_a, "activation"_a,
           "scoring"_a, "normalize"_a, "add"_a, "scaling"_a, "limit"_a, "router_bias"_a.none(), "correction_bias"_a.none(),
           "gate_bias"_a.none(), "up_bias"_a.none(), "down_bias"_a.none(), "num_groups"_a, "topk_groups"_a)
      .def("sigmoid_gate", &NativeModel::sigmoid_gate_op, "input"_a, "gate"_a, "output"_a, "add"_a)
      .def("logits", &NativeModel::logits_op, "input"_a, "weight"_a, "scale"_a, "softcap"_a)
      .def("step", &NativeModel::run_step, "tokens"_a, "positions"_a, "counts"_a, "table_ends"_a, "blocks"_a, "logit_rows"_a, "logits"_a.noconvert())
      .def("hidden_states", &NativeModel::hidden_states, "first"_a, "out"_a.noconvert())
      .def("copy_block", &NativeModel::copy_blocks, "source"_a, "destination"_a)
      .def("profile", &NativeModel::profile, "on"_a, "Add up the seconds of each op from now on, or stop.")
      .def_prop_ro("op_seconds", &NativeModel::op_seconds, "Seconds of each op in the program's order since profile(True).")
      .def_prop_ro("weight_bytes", &NativeModel::weight_bytes)
      .def_prop_ro("kv_bytes", &NativeModel::kv_bytes)
      .def_prop_ro("isa", [](const NativeModel& s) { return s.kernels().isa; });
}
