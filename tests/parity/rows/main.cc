// Runs the cases of table.py with libfsdp: the other side of reference.py.
//
//   parity_rows <backend> <cases.json> <output>   (one process per rank, with RANK, WORLD_SIZE, ...
//   in the environment)
//
// Writes <output>.<rank>.pt, the tensors by case and key, and <output>.<rank>.json, the texts, and
// of a case that fails its error instead; meanwhile <output>.<rank>.at, which case it is in.

#include <fsdp/process_group.h>

#include <chrono>
#include <fstream>
#include <iostream>

#include "tests/parity/rows/script.h"

namespace {

using nlohmann::json;
using parity_rows::Results;
using parity_rows::World;

World make_world(const std::string& backend) {
  auto options = fsdp::ProcessGroupOptions::from_environment(c10::kCPU);
  options.timeout = std::chrono::seconds(60);
  if (options.world_size > 1) {
    options.backend = backend;
  }
  const auto log = std::make_shared<parity_rows::EventLog>();
  return {
      std::make_shared<parity_rows::ObservedCollectives>(fsdp::init_process_group(options), log),
      log};
}

void run_all(const std::string& backend, const std::string& cases, const std::string& output) {
  World world = make_world(backend);
  const std::string path = output + '.' + std::to_string(world.group->rank());
  fsdp::ModelStateDict tensors;
  json texts = json::object();
  for (const json& row_case : json::parse(std::ifstream(cases))) {
    const std::string name = row_case.at("name").get<std::string>();
    json& noted = texts[name] = json::object();
    std::ofstream(path + ".at") << name;
    try {
      Results results = parity_rows::run_case(row_case, world);
      for (auto& [key, value] : results.tensors) {
        tensors.insert(name + '|' + key, std::move(value));
      }
      for (auto& [key, value] : results.texts) {
        noted[key] = std::move(value);
      }
    } catch (const c10::Error& error) {
      noted["error"] = error.what_without_backtrace();
    } catch (const std::exception& error) {
      noted["error"] = error.what();
    }
  }
  fsdp::save(tensors, path + ".pt");
  std::ofstream file(path + ".json");
  file << texts;
  TORCH_CHECK(file.flush(), "cannot write ", path, ".json");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    TORCH_CHECK(argc == 4, "usage: parity_rows <backend> <cases.json> <output>");
    run_all(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
