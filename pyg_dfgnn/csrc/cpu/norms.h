// Norms of rows, and the derivative of what they normalise. Part of kernels_<isa>.cpp only.
#pragma once

#include "kernels.h"
#include "rows.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

template <class T>
struct Norms {
  using A = typename Accumulator<T>::type;

  static DFGNN_INLINE A inner(const T* x, const T* y, int64_t size) {
    const int64_t index = 0;
    A product;
    dot_group<1, 1>({x}, Rows<T>{y, 0}, &index, size, {&product});
    return product;
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
      const T *given = static_cast<const T*>(args.x) + first, *g = static_cast<const T*>(args.g) + first;
      // A row that nothing came back to has no part in the projection, even if it is not a number: zeros are as good.
      const A given_dot = inner(given, g, args.size);
      const T* x = given_dot == given_dot || inner(g, g, args.size) != A(0) ? given : g;
      const T* added = args.added ? static_cast<const T*>(args.added) + first : nullptr;
      T* grad = static_cast<T*>(args.grad) + first;
      const A length = norm(x, args.size), r = reciprocal(length, eps), dot = x == given ? given_dot : A(0);
      const A project = length > eps ? r * r * dot : A(0);
      const A factor = args.beta ? r * static_cast<const A*>(args.beta)[row % args.heads] : r;
      static_cast<A*>(args.projection)[row] = r * dot;
      const auto columns = [&](const auto& load_columns) __attribute__((always_inline)) {
        const Vector<A> sum = factor * (load_columns(g) - project * load_columns(x));
        return added ? sum + load_columns(added) : sum;
      };
      int64_t d = 0;
      for (; d + lanes<A> <= args.size; d += lanes<A>) {
        store(grad + d, columns([&](const T* p) __attribute__((always_inline)) { return load(p + d); }));
      }
      if (const int rest = int(args.size - d)) {
        store(grad + d, columns([&](const T* p) __attribute__((always_inline)) { return load(p + d, rest); }), rest);
      }
    }
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
