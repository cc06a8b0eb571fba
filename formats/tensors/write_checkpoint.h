#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/checkpoint/dcp_metadata.h"
#include "formats/files/output_file.h"
#include "formats/tensors/tensor_source.h"

namespace fsdprun {

/// A tensor of a source under the key that it gets in the checkpoint.
struct KeyedTensor {
  std::string key;     // "model.lm_head.weight"
  std::string source;  // its name in the source
  /// Where the key belongs in the nested state dict; empty: as PathOfKey says.
  std::vector<checkpoint::PathPart> path = {};
};

/// A finished blob (a torch.save archive of one Python object) and its key.
struct KeyedObject {
  std::string key;
  std::string blob;
  std::vector<checkpoint::PathPart> path = {};  // as above
};

struct CheckpointToWrite {
  std::vector<KeyedTensor> tensors;
  std::vector<KeyedObject> objects;
  int64_t step = 0;
  int64_t tokens = 0;
  std::string run;
};

/// Writes a DCP checkpoint that Python's dcp.load and fsdp-train read: one data file, .metadata and
/// fsdprun.json with checksums. Streams: memory holds one piece. The folder appears whole or not at
/// all. Errors: fsdp::archive::Error, also on a key that is there twice and on a dtype that
/// checkpoints do not have; those of the source.
void WriteCheckpoint(TensorSource& source, const CheckpointToWrite& checkpoint,
                     const std::string& path, Existing existing);

}  // namespace fsdprun
