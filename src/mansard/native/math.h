// Vector exp and the activations, over any lane type.
#pragma once
#include <cmath>

#include "kernels.h"

namespace mansard {

// e^x to about 1 ulp by range reduction and a degree-6 polynomial (Cephes expf); x is clamped to [-87, 88].
template <class L>
inline typename L::F exp(typename L::F x) {
  using F = typename L::F;
  x = L::min(L::set1(88.f), L::max(L::set1(-87.f), x));  // the operand order keeps a NaN
  const F n = L::round(L::mul(x, L::set1(1.44269504088896341f)));
  F r = L::fma(n, L::set1(-0.693359375f), x);
  r = L::fma(n, L::set1(2.12194440e-4f), r);
  F p = L::set1(1.9875691500e-4f);
  p = L::fma(p, r, L::set1(1.3981999507e-3f));
  p = L::fma(p, r, L::set1(8.3334519073e-3f));
  p = L::fma(p, r, L::set1(4.1665795894e-2f));
  p = L::fma(p, r, L::set1(1.6666665459e-1f));
  p = L::fma(p, r, L::set1(5.0000001201e-1f));
  p = L::fma(p, L::mul(r, r), L::add(r, L::set1(1.f)));
  return L::mul(p, L::exp2_int(n));
}

template <class L>
inline typename L::F sigmoid(typename L::F x) {
  return L::div(L::set1(1.f), L::add(L::set1(1.f), exp<L>(L::sub(L::zero(), x))));
}

// tanh(x) = 1 - 2 / (e^2x + 1)
template <class L>
inline typename L::F tanh(typename L::F x) {
  const typename L::F e = exp<L>(L::add(x, x));
  return L::sub(L::set1(1.f), L::div(L::set1(2.f), L::add(e, L::set1(1.f))));
}

template <class L>
inline typename L::F gelu_erf(typename L::F x) {
  float t[16];
  L::store(t, x);
  for (float& v : t) v = 0.5f * v * (1.f + std::erf(v * 0.70710678f));
  return L::load(t);
}

template <class L>
inline typename L::F activate(typename L::F x, ActivationKind kind) {
  using F = typename L::F;
  switch (kind) {
    case ActivationKind::Silu: return L::mul(x, sigmoid<L>(x));
    case ActivationKind::GeluTanh: {
      const F cubic = L::mul(L::mul(x, L::mul(x, x)), L::set1(0.044715f));
      const F t = tanh<L>(L::mul(L::add(x, cubic), L::set1(0.7978845608f)));
      return L::mul(L::mul(x, L::set1(0.5f)), L::add(L::set1(1.f), t));
    }
    case ActivationKind::Gelu: return gelu_erf<L>(x);
    case ActivationKind::Relu: return L::max(x, L::zero());
    case ActivationKind::Relu2: { const F r = L::max(x, L::zero()); return L::mul(r, r); }
    case ActivationKind::SwigluOai: return L::mul(x, sigmoid<L>(L::mul(x, L::set1(1.702f))));
  }
  return x;
}

}  // namespace mansard
