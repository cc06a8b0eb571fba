// Bytes of a `.metadata` file -> tensors, objects and paths. Properties of accepted metadata:
// chunks tile their tensor, file names are plain, and it is equal after a round trip through our
// encoder.

#include <algorithm>
#include <string>

#include "base/check.h"
#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/error.h"
#include "fsdp_runtime/plan/box.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun::checkpoint {
namespace {

void CheckLocation(const BlobLocation& blob) {
  FSDPRUN_CHECK(!blob.file.empty() && blob.file != "." && blob.file != ".." &&
                    blob.file.find_first_of(std::string_view("/\0", 2)) == std::string::npos,
                "blob outside the checkpoint directory");
  FSDPRUN_CHECK(blob.offset >= 0 && blob.length >= 0, "negative offset or length");
}

void CheckTensor(const StoredTensor& tensor) {
  int64_t covered = 0;
  for (const StoredChunk& chunk : tensor.chunks) {
    FSDPRUN_CHECK(chunk.box.sizes.size() == tensor.shape.size() &&
                      chunk.box.offsets.size() == tensor.shape.size(),
                  "chunk of another rank than its tensor");
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      FSDPRUN_CHECK(chunk.box.offsets[d] + chunk.box.sizes[d] <= tensor.shape[d],
                    "chunk outside the tensor");
    }
    const int64_t elements = fsdp::plan::numel_of(chunk.box);
    covered += elements;
    if (elements != 0) {
      CheckLocation(chunk.blob);
    }
  }
  FSDPRUN_CHECK(covered == fsdp::plan::numel_of(tensor.shape), "chunks do not cover the tensor");
  if (tensor.chunks.size() > 64) {
    return;
  }
  for (size_t i = 0; i < tensor.chunks.size(); ++i) {
    for (size_t j = i + 1; j < tensor.chunks.size(); ++j) {
      FSDPRUN_CHECK(!fsdp::plan::intersect(tensor.chunks[i].box, tensor.chunks[j].box),
                    "overlapping chunks");
    }
  }
}

void Fuzz(std::string_view input) {
  DcpMetadata metadata;
  try {
    const fuzz::MemoryBound bound((4 << 20) + 2048 * input.size());
    metadata = DecodeDcpMetadata(input, "the file");
  } catch (const CheckpointError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return;
  }
  for (const auto& [key, tensor] : metadata.tensors) {
    CheckTensor(tensor);
  }
  for (const auto& [key, blob] : metadata.objects) {
    CheckLocation(blob);
  }
  FSDPRUN_CHECK(DecodeDcpMetadata(EncodeDcpMetadata(metadata), "the rewritten file") == metadata,
                "metadata differs after a round trip");
}

/// Changes the operand of a random BININT1: offsets and sizes are a few bytes of a large pickle,
/// which blind mutation rarely hits.
void MutateInteger(uint8_t* data, size_t size, unsigned int seed) {
  const size_t opcode = fuzz::AsText(data, size).find('K', seed % (size + 1));
  if (opcode != std::string_view::npos && opcode + 1 < size) {
    data[opcode + 1] = static_cast<uint8_t>(seed / 7 % 8);
  }
}

}  // namespace
}  // namespace fsdprun::checkpoint

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  if (seed % 3 != 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  fsdprun::checkpoint::MutateInteger(data, size, seed / 3);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::checkpoint::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
