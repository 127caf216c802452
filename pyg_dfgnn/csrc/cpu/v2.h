// GATv2's scores of edges that have features, and their gradients, by runs of entries of a compressed form, a few edges
// at a time (csrc/logits.h). Part of kernels_<isa>.cpp only.
#pragma once

#include "block.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Entries one after another, with the row that each is in: the last that begins at or before it.
class V2Entries {
 public:
  V2Entries(const V2Args& args, int64_t begin) : args_(args) {
    int64_t low = -1, high = args.num_rows + 1;  // of which the one begins before, the other after
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (at(args.ptr, middle) <= begin ? low : high) = middle;
    }
    row_ = low;
  }

  // What is known of entry c, in ascending order.
  struct Entry {
    int64_t row, node, edge, features;
    bool is_edge, is_known;
  };
  Entry operator()(int64_t c) {
    while (row_ < args_.num_rows && at(args_.ptr, row_ + 1) <= c) ++row_;
    Entry entry{row_, at(args_.node, c), args_.position ? at(args_.position, c) : c, 0, true, true};
    entry.is_edge = row_ >= 0 && row_ < args_.num_rows;
    entry.is_known = entry.is_edge && is_in(entry.node, args_.num_nodes) && is_in(entry.edge, args_.num_edges);
    if (entry.is_known && args_.edge_dim > 0) {
      entry.features = at(args_.eid, entry.edge);
      entry.is_known = is_in(entry.features, args_.num_features);
    }
    return entry;
  }

  // Asks for the rows of entry c, of its node and of its features.
  template <class T>
  DFGNN_INLINE void prefetch(int64_t c) const {
    const int64_t size = sizeof(T), node = at(args_.node, c), edge = args_.position ? at(args_.position, c) : c;
    if (is_in(node, args_.num_nodes)) prefetch_row(args_.other, node, args_.heads * args_.channels * size);
    if (args_.edge_dim == 0 || !is_in(edge, args_.num_edges)) return;
    const int64_t features = at(args_.eid, edge);
    if (is_in(features, args_.num_features)) prefetch_row(args_.features, features, args_.edge_dim * size);
  }

 private:
  int64_t at(const void* indices, int64_t i) const { return index_at(indices, args_.wide_index, i); }
  static bool is_in(int64_t i, int64_t bound) { return uint64_t(i) < uint64_t(bound); }

  const V2Args& args_;
  int64_t row_;
};

template <class T>
struct V2 {
  using A = typename Accumulator<T>::type;
  static constexpr int G = 4, L = lanes<A>;  // edges at a time

  static int64_t width(const V2Args& args) { return args.heads * args.channels; }
  // Of A: features of G edges and their gradients, d of these edges and what it is made of, and the sum of a row.
  static int64_t scratch(const V2Args& args) {
    return 2 * G * padded<A>(args.edge_dim) + (2 * G + 1) * padded<A>(width(args));
  }
  // Heads that are less than a vector are taken together, several in one.
  static bool are_narrow(const V2Args& args) { return args.channels < L && args.heads > 1; }

  // Edges, with their features as numbers.
  struct Group {
    const V2Args& args;
    A* features;
    int n = 0;
    typename V2Entries::Entry entry[G] = {};
    const T *own[G] = {}, *other[G] = {};

    bool add(const typename V2Entries::Entry& found) {
      const int64_t size = width(args), F = args.edge_dim;
      entry[n] = found;
      own[n] = as<T>(args.own) + found.row * size;
      other[n] = as<T>(args.other) + found.node * size;
      if (F > 0) {
        const T* from = as<T>(args.features) + found.features * F;
        A* to = features + n * padded<A>(F);
        int64_t f = 0;
        for (; f + L <= F; f += L) store(to + f, load(from + f));
        if (const int rest = int(F - f)) store(to + f, load(from + f, rest));
      }
      return ++n == G;
    }
    // What is read of those that are not there is the first one's again.
    void fill_up() {
      for (int g = n; g < G; ++g) {
        own[g] = own[0], other[g] = other[0];
        for (int64_t f = 0; f < args.edge_dim; ++f) features[g * padded<A>(args.edge_dim) + f] = features[f];
      }
    }

    // z of the columns that load_columns(pointer to the first of all columns) loads.
    template <class Load>
    DFGNN_INLINE void columns(Vector<A> (&z)[G], const Load& load_columns) const {
      const int64_t size = width(args), F = args.edge_dim, stride = padded<A>(F);
      for (int g = 0; g < G; ++g) z[g] = load_columns(own[g]) + load_columns(other[g]);
      for (int64_t f = 0; f < F; ++f) {
        const Vector<A> w = load_columns(as<A>(args.weight) + f * size);
        for (int g = 0; g < G; ++g) z[g] += features[g * stride + f] * w;
      }
    }
  };

  static int rest_of(int64_t c, int64_t end) { return int(c + L <= end ? L : end - c); }  // of a vector

  // Calls f(column, load_columns) for vectors of a head's columns, and for what is left of them.
  template <class F>
  DFGNN_INLINE static void for_columns(int64_t begin, int64_t end, const F& f) {
    int64_t c = begin;
    for (; c + L <= end; c += L) f(c, [c](const auto* p) __attribute__((always_inline)) { return load(p + c); });
    if (const int rest = int(end - c)) {
      f(c, [c, rest](const auto* p) __attribute__((always_inline)) { return load(p + c, rest); });
    }
  }

  // Calls group(g) for the known edges of the entries, G at a time, and unknown(entry) for edges that are not.
  template <class Take, class Unknown>
  DFGNN_INLINE static void for_groups(const V2Args& args, int64_t begin, int64_t end, A* memory, const Take& take,
                                      const Unknown& unknown) {
    constexpr int kAhead = 16;  // entries, whose rows lie anywhere
    V2Entries entries(args, begin);
    Group group{args, memory};
    for (int64_t c = begin; c < end; ++c) {
      if (c + kAhead < end) entries.template prefetch<T>(c + kAhead);
      const auto entry = entries(c);
      if (!entry.is_known) {
        if (entry.is_edge) unknown(entry);
      } else if (group.add(entry)) {
        take(group);
        group.n = 0;
      }
    }
    if (group.n == 0) return;
    group.fill_up();
    take(group);
  }

  static void logits(const V2Args& args, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads, C = args.channels;
    const A negative_slope = A(args.negative_slope);
    A* out = as<A>(args.logits);
    const int64_t stride = padded<A>(width(args));
    A* const products = as<A>(memory) + G * padded<A>(args.edge_dim);  // [G, stride], of narrow heads
    const auto take = [&](const Group& group) {
      const auto terms = [&](Vector<A>(&x)[G], const auto& load_columns) __attribute__((always_inline)) {
        Vector<A> z[G];
        group.columns(z, load_columns);
        const Vector<A> att = load_columns(as<A>(args.att));
        for (int g = 0; g < G; ++g) x[g] = att * slope(z[g], negative_slope) * z[g];
      };
      if (are_narrow(args)) {
        for_columns(0, H * C, [&](int64_t c, const auto& load_columns) __attribute__((always_inline)) {
          Vector<A> x[G];
          terms(x, load_columns);
          for (int g = 0; g < G; ++g) store(products + g * stride + c, x[g]);
        });
      }
      for (int64_t h = 0; h < H; ++h) {
        Vector<A> sums[G] = {};
        if (are_narrow(args)) {
          for (int g = 0; g < G; ++g) sums[g] = load(products + g * stride + h * C, int(C));
        } else {
          for_columns(h * C, (h + 1) * C, [&](int64_t, const auto& load_columns) __attribute__((always_inline)) {
            Vector<A> x[G];
            terms(x, load_columns);
            for (int g = 0; g < G; ++g) sums[g] += x[g];
          });
        }
        A dots[G];
        write_sums(sums, dots);
        for (int g = 0; g < group.n; ++g) out[group.entry[g].edge * H + h] = dots[g];
      }
    };
    for_groups(args, begin, end, as<A>(memory), take,
               [&](const auto& entry) { fill(out + entry.edge * H, H, A(kNaN)); });
  }

  // Of a task's entries: rows of grad_own that begin and end in it, `ends` of its first and last one, and, if they are
  // asked for, the task's sums, of att's and of W's gradients, and the gradients of features.
  static void gradients(const V2Args& args, int64_t task, void* memory) {
    const int64_t H = args.heads, C = args.channels, F = args.edge_dim, size = width(args), stride = padded<A>(size);
    const A negative_slope = A(args.negative_slope);
    const int64_t begin = args.num_edges * task / args.tasks, end = args.num_edges * (task + 1) / args.tasks;
    A *features = as<A>(memory), *of_features = features + G * padded<A>(F), *d = of_features + G * padded<A>(F);
    A *const factors = d + G * stride, *const sum = factors + G * stride;  // of d, by columns of narrow heads
    A* of_att = args.sums ? as<A>(args.sums) + task * (1 + F) * size : nullptr;
    if (of_att) fill(of_att, (1 + F) * size, A(0));
    int64_t row = -1;
    bool is_first = true;
    const auto end_row = [&](bool is_last) {
      if (row < 0) return;
      const bool is_end = is_first || is_last;
      const int64_t at = 2 * task + (is_first ? 0 : 1);
      if (is_end) as<int64_t>(args.end_rows)[at] = row;
      write_row(is_end ? as<A>(args.ends) + at * size : as<A>(args.grad_own) + row * size, sum, A(1), size);
      is_first = false;
    };
    const auto take = [&](const Group& group) {
      const auto some = [&](int64_t c, int n, const auto& columns, const auto& ds) __attribute__((always_inline)) {
        Vector<A> z[G], weighted = {};
        group.columns(z, columns);
        const Vector<A> att = columns(as<A>(args.att));
        for (int g = 0; g < G; ++g) {
          const Vector<A> x = ds(g) * slope(z[g], negative_slope);
          weighted += x * z[g];
          store_some(d + g * stride + c, x * att, n);
        }
        if (of_att) store_some(of_att + c, columns(of_att) + weighted, n);
      };
      for (int64_t h = 0; h < H; ++h) {
        A ds[G];
        for (int g = 0; g < G; ++g) ds[g] = g < group.n ? as<A>(args.grad)[group.entry[g].edge * H + h] : A(0);
        if (are_narrow(args)) {
          for (int g = 0; g < G; ++g) store(factors + g * stride + h * C, broadcast(ds[g]), int(C));
          continue;
        }
        for_columns(h * C, (h + 1) * C, [&](int64_t c, const auto& load_columns) __attribute__((always_inline)) {
          some(c, rest_of(c, (h + 1) * C), load_columns, [&](int g) { return ds[g]; });
        });
      }
      if (are_narrow(args)) {
        for_columns(0, size, [&](int64_t c, const auto& load_columns) __attribute__((always_inline)) {
          some(c, rest_of(c, size), load_columns, [&](int g) { return load(factors + g * stride + c); });
        });
      }
      for (int g = 0; g < group.n; ++g) {
        if (group.entry[g].row != row) {
          end_row(false);
          row = group.entry[g].row;
          fill(sum, stride, A(0));
        }
        for (int64_t c = 0; c < size; c += L) store(sum + c, load(sum + c) + load(d + g * stride + c));
      }
      if (!of_att || F == 0) return;
      for (int64_t f = 0; f < F; ++f) {
        A numbers[G];
        for (int g = 0; g < G; ++g) numbers[g] = g < group.n ? features[g * padded<A>(F) + f] : A(0);
        A* of_weight = of_att + (1 + f) * size;
        Vector<A> dots[G] = {};
        for_columns(0, size, [&](int64_t c, const auto& load_columns) __attribute__((always_inline)) {
          const int n = rest_of(c, size);
          const Vector<A> w = load_columns(as<A>(args.weight) + f * size);
          Vector<A> added = load_columns(of_weight);
          for (int g = 0; g < G; ++g) {
            const Vector<A> x = load_columns(d + g * stride);
            dots[g] += x * w;
            added += numbers[g] * x;
          }
          store_some(of_weight + c, added, n);
        });
        write_sums(dots, numbers);
        for (int g = 0; g < G; ++g) of_features[g * padded<A>(F) + f] = numbers[g];
      }
      if (!args.grad_features) return;
      for (int g = 0; g < group.n; ++g) {
        write_row(as<T>(args.grad_features) + group.entry[g].features * F, of_features + g * padded<A>(F), A(1), F);
      }
    };
    fill(d, 2 * G * stride, A(0));  // and factors
    for_groups(args, begin, end, features, take, [](const auto&) {});
    end_row(true);
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
