#pragma once

// Runs a case: a model, and what is done with it, operation by operation, as table.py writes it
// down.

#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/state_dict.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/parity/rows/models.h"
#include "tests/parity/rows/observed_collectives.h"

namespace parity_rows {

/// What all cases of a process share.
struct World {
  std::shared_ptr<fsdp::Collectives> group;  // observed
  std::shared_ptr<EventLog> log;
  std::map<std::vector<int64_t>, std::shared_ptr<fsdp::DeviceMesh>> meshes = {};  // by shape

  const std::shared_ptr<fsdp::DeviceMesh>& mesh_of(const std::vector<int64_t>& shape);
};

/// By the number of the operation, and what they are.
struct Results {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::vector<std::string>> texts;
};

/// Of one case. Throws what libfsdp throws, and c10::Error or a JSON error on a case that is wrong.
Results run_case(const nlohmann::json& row_case, World& world);

}  // namespace parity_rows
