// The nodes at the other ends of a row's edges, as a warp reads them.
#pragma once

#include "logit.cuh"

namespace dfgnn::cuda {

// The nodes of a row's edges in shared memory, a batch of 32 after another, those after them being on their way, and
// what they bring to the logits (src_term). A node that is out of range is 0 there, and its term NaN.
template <Score score, class T>
class NodeBatches {
 public:
  using A = typename Typed<T>::A;
  struct Storage {
    alignas(16) int nodes[kWarp];
    A terms[kWarp];  // also what is read, and not used, in the place of nodes past the last
  };

  // edges: some.
  __device__ __forceinline__ NodeBatches(const Typed<T>& a, Storage& batch, const Range& edges, int h)
      : a_(a), batch_(batch), col_(a.col.from(edges.begin)), last_(static_cast<int>(edges.size()) - 1), head_(h) {
    load_terms(load_node(lane()));
    later_ = load_node(kWarp + lane());
  }

  // Goes on to the batch that begins with the row's edge `first`, in ascending order; what threads have read before is
  // gone.
  __device__ __forceinline__ void load(int first) {
    __syncwarp();
    batch_.nodes[lane()] = max(node_, 0);
    batch_.terms[lane()] = node_ == kNoNode ? A(NAN) : term_;
    load_terms(later_);
    later_ = load_node(first + 2 * kWarp + lane());
    __syncwarp();
  }

 private:
  __device__ __forceinline__ static int lane() { return threadIdx.x % kWarp; }
  __device__ __forceinline__ LoadedIndex load_node(int t) const {  // past the end, the last again
    return {col_, min(t, last_)};
  }
  __device__ __forceinline__ void load_terms(const LoadedIndex& node) {
    node_ = node.check(a_.num_src);
    term_ = src_term<score>(a_, max(node_, 0), head_);
  }

  const Typed<T>& a_;
  Storage& batch_;
  const Index col_;
  const int last_, head_;
  int node_;  // of the next batch
  A term_;
  LoadedIndex later_;  // of the one after it
};

}  // namespace dfgnn::cuda
