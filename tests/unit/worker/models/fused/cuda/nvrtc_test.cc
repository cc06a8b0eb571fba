// The kernels are what NVRTC compiles, for the architectures of an A100 and of an H100.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/models/fused/cuda/block_sizes.h"
#include "worker/models/fused/cuda/kernel_cache.h"

namespace fsdprun::worker {
namespace {

struct Source {
  const fused::KernelSource* source;
  int threads;  // of a block, at most
  size_t kernels;
};

const Source kSources[] = {{&fused::kRopeSource, fused::block_sizes::kRope, 4},
                           {&fused::kSwigluSource, fused::block_sizes::kSwiglu, 8},
                           {&fused::kCrossEntropySource, fused::block_sizes::kCrossEntropy, 4}};

/// What a cubin says of a kernel with __launch_bounds__, and of no other: EIATTR_MAX_THREADS (5),
/// in EIFMT_SVAL (4), which has a size (12), along x, y and z.
std::string BoundsOf(int threads) {
  std::string attribute("\x04\x05\x0c\0", 4);
  for (const int32_t along : {threads, 1, 1}) {
    attribute.append(reinterpret_cast<const char*>(&along), sizeof(along));
  }
  return attribute;
}

size_t TimesIn(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++times;
  }
  return times;
}

TEST(NvrtcTest, EverySourceCompilesWithRegistersThatFitItsBlocks) {
  const fused::Nvrtc nvrtc = fused::OpenNvrtc({FSDPRUN_NVRTC});
  for (const Source& given : kSources) {
    for (const char* architecture : {"sm_80", "sm_90"}) {
      const std::string cubin =
          fused::CompileKernels(nvrtc, *given.source, architecture, "a device");
      std::string name = given.source->name;
      const std::string where = name + " for " + architecture;
      EXPECT_EQ(cubin.substr(0, 4),
                "\x7f"
                "ELF")
          << where;
      EXPECT_EQ(TimesIn(cubin, BoundsOf(given.threads)), given.kernels)
          << "kernels of " << where << " with __launch_bounds__";
      name.resize(name.find('.'));
      for (const char* suffix : {"_f32", "_f32_wide", "_bf16", "_bf16_wide"}) {
        EXPECT_NE(cubin.find(".text." + name + suffix + std::string(1, '\0')), std::string::npos)
            << suffix << " of " << where;
      }
    }
  }
}

TEST(NvrtcTest, WhatIsWrongIsShown) {
  const fused::Nvrtc nvrtc = fused::OpenNvrtc({FSDPRUN_NVRTC});
  try {
    fused::CompileKernels(nvrtc, {"wrong.cu", "none of this"}, "sm_90", "a device");
    ADD_FAILURE() << "was compiled";
  } catch (const fused::KernelError& error) {
    EXPECT_NE(std::string(error.what()).find("wrong.cu(1): error: "), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fsdprun::worker
