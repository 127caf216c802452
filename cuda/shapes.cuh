// From run-time types and sizes to templates.
#pragma once

#include "attention.h"
#include "fragment.cuh"

namespace dfgnn::cuda {

// Calls launch.operator()<S>() with the shape for a head size: 16-byte vectors where it is a multiple of them.
template <class T, class Launch>
cudaError_t for_shape(int head_dim, const Launch& launch) {
  constexpr int kVec = 16 / sizeof(T);
  constexpr int kSteps = kVec == 8 ? 2 : 4;  // 16 numbers a fragment at the most: what registers hold a few of
  if constexpr (sizeof(T) < 8) {             // float64 is there for gradcheck: one shape serves
    if (head_dim % kVec == 0) {
      const int vectors = head_dim / kVec;
      if (vectors <= 2) return launch.template operator()<Shape<T, kVec, 2, 1>>();
      if (vectors <= 4) return launch.template operator()<Shape<T, kVec, 4, 1>>();
      if (vectors <= 8) return launch.template operator()<Shape<T, kVec, 8, 1>>();
      if (vectors <= 16) return launch.template operator()<Shape<T, kVec, 8, 2>>();
      if (vectors <= 32) return launch.template operator()<Shape<T, kVec, 32 / kSteps, kSteps>>();
      if constexpr (kSteps == 4) {
        if (vectors <= 64) return launch.template operator()<Shape<T, kVec, 16, kSteps>>();
      }
      return launch.template operator()<Shape<T, kVec, 32, kSteps, true>>();
    }
  }
  return launch.template operator()<Shape<T, 1, 32, 4, true>>();
}

// Calls launch.operator()<T>().
template <class Launch>
cudaError_t for_type(Type type, const Launch& launch) {
  switch (type) {
    case Type::f32:
      return launch.template operator()<float>();
    case Type::f16:
      return launch.template operator()<__half>();
    case Type::bf16:
      return launch.template operator()<__nv_bfloat16>();
    default:
      return launch.template operator()<double>();
  }
}

// Calls launch.operator()<T, kVec>(): 16 bytes at a time where `size` numbers are a multiple of them; float64 one by
// one.
template <class Launch>
cudaError_t for_type_and_vector(Type type, int64_t size, const Launch& launch) {
  return for_type(type, [&]<class T>() {
    constexpr int kVec = 16 / sizeof(T);
    if constexpr (sizeof(T) < 8) {
      if (size % kVec == 0) return launch.template operator()<T, kVec>();
    }
    return launch.template operator()<T, 1>();
  });
}

template <class Launch>
cudaError_t for_type_and_shape(Type type, int head_dim, const Launch& launch) {
  return for_type(type, [&]<class T>() { return for_shape<T>(head_dim, launch); });
}

// Calls launch.operator()<score, S>().
template <class Launch>
cudaError_t for_score_and_shape(const Attention& a, const Launch& launch) {
  return for_type_and_shape(a.type, a.head_dim, [&]<class S>() {
    switch (a.score) {
      case Score::dot:
        return launch.template operator()<Score::dot, S>();
      case Score::cosine:
        return launch.template operator()<Score::cosine, S>();
      case Score::additive_v2:
        return launch.template operator()<Score::additive_v2, S>();
      default:
        return launch.template operator()<Score::additive, S>();
    }
  });
}

}  // namespace dfgnn::cuda
