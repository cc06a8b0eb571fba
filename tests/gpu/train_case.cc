#include "tests/gpu/train_case.h"

namespace fsdp::gpu {
namespace {

/// One of `words`. Errors: fsdprun::ConfigError.
std::string word(const fsdprun::Json& document, const char* key,
                 std::initializer_list<const char*> words) {
  const auto given = document.at(key).get<std::string>();
  for (const char* known : words) {
    if (given == known) {
      return given;
    }
  }
  throw fsdprun::ConfigError(std::string(key) + ": '" + given + "' is not known");
}

void read_training(const fsdprun::Json& document, TrainCase& read) {
  read.optimizer = word(document, "optimizer", {"adamw", "sgd"});
  read.lr = document.at("lr").get<double>();
  read.lr_factor = document.at("lr_factor").get<double>();
  read.max_grad_norm = document.at("max_grad_norm").get<double>();
  read.first_step = document.at("first_step").get<int64_t>();
  read.steps = document.at("steps").get<int64_t>();
  read.micro_batches = document.at("micro_batches").get<int64_t>();
  read.batch = document.at("batch").get<int64_t>();
  read.length = document.at("length").get<int64_t>();
  read.init = word(document, "init", {"formula", "random"});
  read.read_from = document.at("read_from").get<std::string>();
  read.write_to = document.at("write_to").get<std::string>();
  read.is_timed = document.at("timed").get<bool>();
  read.seconds = document.at("seconds").get<double>();
}

}  // namespace

TrainCase read_case(const std::string& path) {
  const fsdprun::Json document = fsdprun::ReadStrictJsonFile(path);
  try {
    TrainCase read;
    read.model = fsdprun::ParseModelConfig(document.at("model"), path);
    read.device = word(document, "device", {"cpu", "cuda"}) == "cuda" ? c10::Device(c10::kCUDA, 0)
                                                                      : c10::Device(c10::kCPU);
    read.group = word(document, "group", {"alone", "mirrored", "none"});
    read.communicates = document.at("communicates").get<bool>();
    read.is_bfloat16 = word(document, "precision", {"float32", "bfloat16"}) == "bfloat16";
    read.recomputes_blocks = document.at("activation_checkpointing").get<bool>();
    read.is_graph = document.at("graph").get<bool>();
    read.kernels = word(document, "kernels", {"reference", "fused"}) == "fused"
                       ? fsdprun::worker::Kernels::kFused
                       : fsdprun::worker::Kernels::kReference;
    read_training(document, read);
    return read;
  } catch (const nlohmann::json::exception& error) {
    throw fsdprun::ConfigError(path + ": " + error.what());
  }
}

}  // namespace fsdp::gpu
