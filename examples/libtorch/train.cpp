// Loads a model that script_model.py saved, and trains it on a ring of nodes.
//
//   train MODEL [STEPS]
//
// Prints the loss of each step, and saves the trained model as MODEL.trained.
#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr int64_t kNodes = 64;
constexpr int64_t kFeatures = 16;
constexpr int64_t kClasses = 4;

// Waves of different lengths along the ring.
at::Tensor features(at::Device device) {
  const auto node = at::arange(kNodes, at::device(device).dtype(at::kFloat)).unsqueeze(1);
  const auto wave = at::arange(1, kFeatures + 1, at::device(device).dtype(at::kFloat)).unsqueeze(0);
  return at::sin(node * wave * (2 * M_PI / kNodes));
}

// From each node to the next three: [2, E], sources and destinations.
at::Tensor edges(at::Device device) {
  const auto node = at::arange(kNodes, at::device(device).dtype(at::kLong));
  std::vector<at::Tensor> sources, destinations;
  for (int64_t step = 1; step <= 3; ++step) {
    sources.push_back(node);
    destinations.push_back((node + step) % kNodes);
  }
  return at::stack({at::cat(sources), at::cat(destinations)});
}

void train(const std::string& path, int steps) {
  const at::Device device = at::hasCUDA() ? at::kCUDA : at::kCPU;
  auto model = torch::jit::load(path, device);
  model.train();

  const auto x = features(device), edge_index = edges(device);
  const auto target = at::arange(kNodes, edge_index.options()).div(kNodes / kClasses, "floor");
  for (int step = 0; step < steps; ++step) {
    const auto loss = at::cross_entropy_loss(model.forward({x, edge_index}).toTensor(), target);
    loss.backward();
    std::cout << "step " << step << ": loss " << loss.item<double>() << "\n";

    const at::NoGradGuard no_grad;
    for (at::Tensor parameter : model.parameters()) {
      parameter.sub_(parameter.grad(), /*alpha=*/0.5);
      parameter.mutable_grad().reset();
    }
  }
  model.save(path + ".trained");
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc == 3 ? std::atoi(argv[2]) : 1;
  if (argc < 2 || argc > 3 || steps < 1) {
    std::cerr << "usage: " << argv[0] << " MODEL [STEPS], at least one\n";
    return 2;
  }
  try {
    train(argv[1], steps);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  }
}
