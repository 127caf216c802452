# Decides whether CUDA code is built (DFGNN_CUDA), and how. Defines dfgnn_cuda_options(<target>).
include(CheckLanguage)

set(DFGNN_CUDA OFF)
if(DFGNN_KERNELS_ONLY)
  set(WITH_CUDA ON)
endif()

if(WITH_CUDA STREQUAL "AUTO" AND NOT DFGNN_TORCH_CUDA_VERSION)
  message(STATUS "CUDA operators: off (torch ${DFGNN_TORCH_VERSION} is a build without CUDA)")
elseif(WITH_CUDA)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(DFGNN_CUDA ON)
  elseif(WITH_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA operators: off (no nvcc found; set CUDACXX or put it on the PATH)")
  else()
    message(FATAL_ERROR "CUDA code was asked for, and no nvcc was found: set CUDACXX or put it on the PATH")
  endif()
else()
  message(STATUS "CUDA operators: off (WITH_CUDA=${WITH_CUDA})")
endif()

if(NOT DFGNN_CUDA)
  return()
endif()

# The runtime is linked statically. It shares torch's contexts, streams and graphs, which belong to the driver, not to
# the runtime; and libdfgnn.so then needs no libcudart of exactly nvcc's minor version, nor a place to look for it.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_ARCHITECTURES OFF)  # we pass -gencode ourselves: CMake knows 9.0a, 10.0f and the like late or never
enable_language(CUDA)

set(reason "")
if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
  set(reason "12.4 is the first that compiles them (__maxnreg__).")
endif()
if(NOT DFGNN_KERNELS_ONLY)
  if(NOT DFGNN_TORCH_CUDA_VERSION)
    message(FATAL_ERROR "WITH_CUDA=ON, but torch ${DFGNN_TORCH_VERSION} is a build without CUDA. "
                        "cmake -DDFGNN_KERNELS_ONLY=ON compiles the kernels alone.")
  endif()
  string(REGEX MATCH "^[0-9]+" torch_cuda_major "${DFGNN_TORCH_CUDA_VERSION}")
  string(REGEX MATCH "^[0-9]+" nvcc_major "${CMAKE_CUDA_COMPILER_VERSION}")
  if(NOT torch_cuda_major EQUAL nvcc_major)
    string(CONCAT reason "torch ${DFGNN_TORCH_VERSION} was built with CUDA ${DFGNN_TORCH_CUDA_VERSION}, and their major "
                         "versions must agree.")
  endif()
endif()
if(reason)
  set(kind WARNING)
  if(NOT WITH_CUDA STREQUAL "AUTO")
    set(kind FATAL_ERROR)
  endif()
  message(${kind} "CUDA operators: off. ${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_CUDA_COMPILER_VERSION}: ${reason} "
                  "Set CUDACXX to another nvcc.")
  set(DFGNN_CUDA OFF)
  return()
endif()
if(NOT DFGNN_KERNELS_ONLY)
  target_include_directories(dfgnn_torch_cuda SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
endif()

# nvcc's flags for TORCH_CUDA_ARCH_LIST, e.g. "8.0;9.0+PTX" (spaces do as well). The default runs on everything from
# Ampere on: code for 8.0 serves 8.x, and its PTX is compiled by the driver for what came after Hopper. Code for 9.0a is
# for Hopper alone, and faster there than code for 9.0, where method tile uses tensor cores (cuda/warpgroup.cuh).
function(dfgnn_arch_flags result)
  set(architectures "$ENV{TORCH_CUDA_ARCH_LIST}")
  if(NOT architectures)
    set(architectures "8.0+PTX;9.0a")
  endif()
  string(REPLACE " " ";" architectures "${architectures}")
  set(flags "")
  foreach(architecture IN LISTS architectures)
    if(NOT architecture MATCHES "^([0-9]+)\\.([0-9][af]?)(\\+PTX)?$")
      message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST: '${architecture}' is not like 8.0, 9.0a or 9.0+PTX")
    endif()
    set(number "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
    list(APPEND flags "-gencode=arch=compute_${number},code=sm_${number}")
    if(CMAKE_MATCH_3)
      list(APPEND flags "-gencode=arch=compute_${number},code=compute_${number}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES flags)
  set(${result} "${flags}" PARENT_SCOPE)
  message(STATUS "CUDA operators: on (nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${architectures})")
endfunction()
dfgnn_arch_flags(DFGNN_ARCH_FLAGS)

function(dfgnn_cuda_options target)
  # -std by hand, too: CMake before 3.26 does not know that nvcc 12 and later have C++20.
  set(flags -std=c++20 ${DFGNN_ARCH_FLAGS})
  # A library of a third of the size. Every driver that runs programs of CUDA 13 can read it.
  if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    list(APPEND flags --compress-mode=size)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${flags}>")
endfunction()
