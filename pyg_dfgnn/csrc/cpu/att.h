// What becomes of additive_v2's gradients of nodes, which lack the factor att. Part of kernels_<isa>.cpp only.
#pragma once

#include "kernels.h"
#include "rows.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

template <class T>
void finish_att(const AttArgs& args, int64_t begin, int64_t end, void* sums) {
  using A = typename Accumulator<T>::type;
  const int64_t size = args.size;
  const A* att = static_cast<const A*>(args.att);
  A* total = static_cast<A*>(sums);
  fill(total, size, A(0));
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * size;
    const T* added = args.added ? static_cast<const T*>(args.added) + row * size : nullptr;
    T* g = static_cast<T*>(args.g) + row * size;
    // A node without edges has no part in att's gradient, even if it is not a number.
    const auto columns = [&](int64_t d, const auto& read, const auto& write) __attribute__((always_inline)) {
      const Vector<A> own = read(g + d), term = own * read(x + d), product = own * read(att + d);
      write(total + d, read(total + d) + (own == A(0) ? Vector<A>{} : term));
      write(g + d, added ? product + read(added + d) : product);
    };
    int64_t d = 0;
    for (; d + lanes<A> <= size; d += lanes<A>) {
      columns(
          d, [](const auto* p) __attribute__((always_inline)) { return load(p); },
          [](auto* p, Vector<A> v) __attribute__((always_inline)) { store(p, v); });
    }
    if (const int rest = int(size - d)) {
      columns(
          d, [=](const auto* p) __attribute__((always_inline)) { return load(p, rest); },
          [=](auto* p, Vector<A> v) __attribute__((always_inline)) { store(p, v, rest); });
    }
  }
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
