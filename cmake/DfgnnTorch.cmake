# Finds the torch that the Python interpreter imports. Defines
#
#   DFGNN_TORCH_VERSION       2.13.0+cpu
#   DFGNN_TORCH_CUDA_VERSION  13.0; empty for a build without CUDA
#   dfgnn_torch               what operators compile and link against
#   dfgnn_torch_cuda          what CUDA operators need on top
#
# This is not find_package(Torch): the CUDA part of that demands every library of the CUDA toolkit (cuBLAS, cuSPARSE, …),
# none of which our sources use, and is where extensions of torch mostly break on users' machines.
find_package(Python COMPONENTS Interpreter REQUIRED)

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "
import os, torch
print(os.path.dirname(torch.__file__), torch.__version__, torch.version.cuda or '',
      int(torch.compiled_with_cxx11_abi()), sep='|')"
  OUTPUT_VARIABLE torch_facts
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE torch_failed)
if(torch_failed)
  message(FATAL_ERROR "${Python_EXECUTABLE} cannot import torch. Install torch first, then build pyg_dfgnn in the same "
                      "environment: pip install --no-build-isolation .")
endif()
string(REPLACE "|" ";" torch_facts "${torch_facts}")
list(GET torch_facts 0 torch_dir)
list(GET torch_facts 1 DFGNN_TORCH_VERSION)
list(GET torch_facts 2 DFGNN_TORCH_CUDA_VERSION)
list(GET torch_facts 3 torch_cxx11_abi)
message(STATUS "Found torch ${DFGNN_TORCH_VERSION} in ${torch_dir}")

# The thread pool behind at::parallel_for is OpenMP's: without this flag its template compiles to a serial loop. torch's
# wheels bring a libgomp.so.1, which is in the process before ours is looked for.
find_package(OpenMP COMPONENTS CXX)
if(NOT OpenMP_CXX_FOUND)
  message(WARNING "The compiler has no OpenMP: the CPU operators will run on one core")
endif()

function(dfgnn_torch_library target)
  add_library(${target} INTERFACE)
  foreach(name IN LISTS ARGN)
    target_link_libraries(${target} INTERFACE "${torch_dir}/lib/lib${name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
  endforeach()
endfunction()

dfgnn_torch_library(dfgnn_torch c10 torch_cpu torch)
target_include_directories(dfgnn_torch SYSTEM INTERFACE
  "${torch_dir}/include" "${torch_dir}/include/torch/csrc/api/include")
target_compile_definitions(dfgnn_torch INTERFACE "_GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi}")
if(OpenMP_CXX_FOUND)
  target_link_libraries(dfgnn_torch INTERFACE OpenMP::OpenMP_CXX)
endif()

if(DFGNN_TORCH_CUDA_VERSION)
  dfgnn_torch_library(dfgnn_torch_cuda c10_cuda torch_cuda)
endif()
