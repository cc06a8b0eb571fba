// The kernels are what NVRTC compiles, for the architectures of an A100 and of an H100.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/models/fused/cuda/kernel_cache.h"

namespace fsdprun::worker {
namespace {

TEST(NvrtcTest, EverySourceCompiles) {
  const fused::Nvrtc nvrtc = fused::OpenNvrtc({FSDPRUN_NVRTC});
  for (const fused::KernelSource* source :
       {&fused::kRopeSource, &fused::kSwigluSource, &fused::kCrossEntropySource}) {
    for (const char* architecture : {"sm_80", "sm_90"}) {
      const std::string cubin = fused::CompileKernels(nvrtc, *source, architecture, "a device");
      EXPECT_EQ(cubin.substr(0, 4),
                "\x7f"
                "ELF")
          << source->name << " for " << architecture;
      std::string name = source->name;
      name.resize(name.find('.'));
      for (const char* suffix : {"_f32", "_f32_wide", "_bf16", "_bf16_wide"}) {
        EXPECT_NE(cubin.find(".text." + name + suffix + std::string(1, '\0')), std::string::npos)
            << name << suffix << " for " << architecture;
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
