// Norms of rows, and the derivative of what they normalise. Part of kernels_<isa>.cpp only.
#pragma once

#include "kernels.h"
#include "lanes.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Calls visit(loading from p the columns from d on, d, columns or 0 for a whole vector) for all columns of a row.
template <class A, class Visit>
DFGNN_INLINE void for_columns(int64_t size, const Visit& visit) {
  int64_t d = 0;
  for (; d + lanes<A> <= size; d += lanes<A>) {
    visit([d](const auto* p) __attribute__((always_inline)) { return load(p + d); }, d, 0);
  }
  if (const int rest = int(size - d)) {
    visit([d, rest](const auto* p) __attribute__((always_inline)) { return load(p + d, rest); }, d, rest);
  }
}

template <class T>
struct Norms {
  using A = typename Accumulator<T>::type;

  static DFGNN_INLINE A inner(const T* x, const T* y, int64_t size) {
    Vector<A> products = {};
    for_columns<A>(size, [&](const auto& load_columns, int64_t, int)
                             __attribute__((always_inline)) { products += load_columns(x) * load_columns(y); });
    return sum(products);
  }

  static DFGNN_INLINE A norm(const T* x, int64_t size) { return A(__builtin_sqrt(inner(x, x, size))); }

  static DFGNN_INLINE A reciprocal(A norm, A eps) { return A(1) / (norm < eps ? eps : norm); }

  static void reciprocal_norm(const NormArgs& args, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = static_cast<const T*>(args.x) + r * args.size;
      static_cast<A*>(args.reciprocal)[r] = reciprocal(norm(x, args.size), A(args.eps));
    }
  }

  static void normalize_backward(const NormArgs& args, int64_t begin, int64_t end) {
    const A eps = A(args.eps);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * args.size;
      const T *x = static_cast<const T*>(args.x) + first, *g = static_cast<const T*>(args.g) + first;
      const T* added = args.added ? static_cast<const T*>(args.added) + first : nullptr;
      T* grad = static_cast<T*>(args.grad) + first;
      const A length = norm(x, args.size), r = reciprocal(length, eps), dot = inner(x, g, args.size);
      const A project = length > eps ? r * r * dot : A(0);
      const A factor = args.beta ? r * static_cast<const A*>(args.beta)[row % args.heads] : r;
      static_cast<A*>(args.projection)[row] = r * dot;
      for_columns<A>(args.size, [&](const auto& load_columns, int64_t d, int rest) __attribute__((always_inline)) {
        Vector<A> sum = factor * (load_columns(g) - project * load_columns(x));
        if (added) sum += load_columns(added);
        rest ? store(grad + d, sum, rest) : store(grad + d, sum);
      });
    }
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
