#pragma once

// What a case says in JSON as libfsdp's options, and shards as whole tensors.

#include <fsdp/collectives.h>
#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/state_dict.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/parity/rows/models.h"

namespace parity_rows {

/// "float16", "bfloat16", "float32" or "float64".
at::ScalarType dtype_of(const std::string& name);
/// Of a unit, and of the "shard" that it is in.
fsdp::FullyShardOptions options_of(const nlohmann::json& unit, const nlohmann::json& shard,
                                   const RowModel& model,
                                   const std::shared_ptr<fsdp::DeviceMesh>& mesh);
/// Of {"full": bool, "cpu_offload": bool, "broadcast_from_rank0": bool}.
fsdp::StateDictOptions state_options(const nlohmann::json& options);

/// By FSDP2's name without "set_": {"what": name, "value": value, "recurse": bool}.
void set_option(const fsdp::FSDPModule& unit, const nlohmann::json& options);

/// Those whose names begin with one of the prefixes.
std::vector<std::pair<std::string, at::Tensor>> parameters_of(const RowModel& model,
                                                              const nlohmann::json& prefixes);
/// By their names; "" is the model.
std::vector<std::shared_ptr<torch::nn::Module>> modules_named(RowModel& model,
                                                              const nlohmann::json& names);
/// Lines "unit: parameter", sorted, with the parameters of nested units.
std::vector<std::string> members_of(const std::map<std::string, fsdp::FSDPModule>& units);
/// Lines "unit numel", sorted, of {"policy": "always"}, {"policy": "size", "min": numel} or
/// {"policy": "named", "names": [...]}, and of "ignored" modules.
std::vector<std::string> planned_units(const std::shared_ptr<RowModel>& model,
                                       const nlohmann::json& options);
/// That a sharded module, whose parameters have this dtype, refuses to().
void expect_no_cast(RowModel& model, at::ScalarType dtype);

/// From the parts of all ranks of the group, which all call it: by one operation for each dtype.
std::vector<at::Tensor> wholes_of(const std::vector<fsdp::LocalShard>& shards,
                                  fsdp::Collectives& group);

}  // namespace parity_rows
