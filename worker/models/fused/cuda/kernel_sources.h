#pragma once

namespace fsdprun::worker::fused {

/// A source in CUDA C++ as it was when the program was built: of a name and a text that last.
struct KernelSource {
  const char* name;
  const char* text;
};

/// What the others include.
extern const KernelSource kBlockSizesHeader;
extern const KernelSource kRowsHeader;

extern const KernelSource kRopeSource;
extern const KernelSource kSwigluSource;
extern const KernelSource kCrossEntropySource;

}  // namespace fsdprun::worker::fused
