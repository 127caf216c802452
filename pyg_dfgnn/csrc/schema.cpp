// Schemas of the attention operators, of which other files define stages; others have theirs where they are. Shapes,
// formulas and the meaning of each argument: attention.h.
#include <torch/library.h>
#include <torch/version.h>

#include <string>

#include "products.h"

#ifdef DFGNN_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace {

const std::string kDropout = "Tensor? bias=None, float dropout_p=0.0, ";
const std::string kSeed = "Tensor? seed=None";
const std::string kSeedAndCsc = kSeed + ", " + dfgnn::kCscArguments;
const std::string kForwardTail = kDropout + kSeedAndCsc;
const std::string kBackwardHead =
    "Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse, Tensor rowptr, Tensor col, Tensor colptr, Tensor row, "
    "Tensor perm, *, ";
const std::string kBackwardTail = kDropout + kSeed;

// Both passes of a family; where `by_position` is set, its forward overloads also as operators of their own,
// "<score>_attention", whose arguments need no names (positional.cpp).
void define_family(torch::Library& m, const std::string& forward, const std::string& backward, const std::string& route,
                   bool by_position = false) {
  const auto def = [&m](const std::string& schema) { m.def(schema.c_str()); };
  const auto def_forward = [&](const std::string& score, const std::string& arguments) {
    const std::string rest = arguments + route + ") -> (Tensor out, Tensor lse)";
    def(forward + "." + score + "(Tensor rowptr, Tensor col, *, " + rest);
    if (by_position) def(score + "_attention(Tensor rowptr, Tensor col, " + rest);
  };
  // Saved TorchScript keeps neither overloads nor the names of positional arguments: what tells the overloads apart is
  // the names of the keyword-only arguments, hence the operands', and the types of all in order, hence the places of
  // eps and of additive_v2's negative_slope.
  const std::string cosine = ", float eps=1e-12";
  const std::string additive = "float negative_slope=0.2, Tensor? a_edge=None, ";
  const std::string additive_v2 = kDropout + "float negative_slope=0.2, ";
  def_forward("dot", "Tensor q, Tensor k, Tensor v, float? scale=None, " + kForwardTail);
  def_forward("cosine", "Tensor x_dst, Tensor x_src, Tensor beta, " + kForwardTail + cosine);
  def_forward("additive", "Tensor a_dst, Tensor a_src, Tensor v, " + additive + kForwardTail);
  def_forward("additive_v2", "Tensor x_dst, Tensor x_src, Tensor att, " + additive_v2 + kSeedAndCsc);
  def(backward + ".dot(" + kBackwardHead + "Tensor q, Tensor k, Tensor v, float? scale=None, " + kBackwardTail + route +
      ") -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_bias)");
  def(backward + ".cosine(" + kBackwardHead + "Tensor x_dst, Tensor x_src, Tensor beta, " + kBackwardTail + cosine +
      ", bool sum_x=False" + route + ") -> (Tensor grad_x_dst, Tensor grad_x_src, Tensor grad_beta, Tensor grad_bias)");
  def(backward + ".additive(" + kBackwardHead + "Tensor a_dst, Tensor a_src, Tensor v, " + additive + kBackwardTail +
      route + ") -> (Tensor grad_a_dst, Tensor grad_a_src, Tensor grad_v, Tensor grad_a_edge, Tensor grad_bias)");
  def(backward + ".additive_v2(" + kBackwardHead + "Tensor x_dst, Tensor x_src, Tensor att, " + additive_v2 + kSeed +
      route + ") -> (Tensor grad_x_dst, Tensor grad_x_src, Tensor grad_att, Tensor grad_bias)");
}

int64_t cuda_version() {
#ifdef DFGNN_WITH_CUDA
  return CUDART_VERSION;
#else
  return -1;
#endif
}

std::string torch_version() { return TORCH_VERSION; }

}  // namespace

TORCH_LIBRARY(dfgnn, m) {
  define_family(m, "smmf_fwd", "smmf_bwd", "");
  define_family(m, "pmf_fwd", "pmf_bwd", "");
  define_family(m, "tile_fwd", "tile_bwd", ", Tensor? tiles=None");
  define_family(m, "attention", "attention_bwd",
                ", str method=\"auto\", SymInt max_degree=-1, Tensor? tiles=None, SymInt tile_blocks=-1, "
                "SymInt tile_nodes=-1, SymInt tile_batches=-1",
                true);
  m.def("cuda_version() -> int", cuda_version);
  m.def("torch_version() -> str", torch_version);
}
