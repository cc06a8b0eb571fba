// Runs the cases of table.py with libfsdp: the other side of reference.py.
//
//   parity_rows <backend> <cases.json> <output>   (one process per rank, with RANK, WORLD_SIZE, ...
//   in the environment)
//
// Writes <output>.<rank>.json and .bin (noted_files.py); of a case that fails its error.
// Meanwhile <output>.<rank>.at says in which case it is.

#include <ATen/ATen.h>
#include <fsdp/process_group.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>

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

/// As noted_files.py reads them.
class NotedFiles {
 public:
  explicit NotedFiles(std::string path)
      : path_(std::move(path)), data_(path_ + ".bin", std::ios::binary) {}

  void add(const std::string& name, const Results& results) {
    json& noted = index_[name] = json(results.texts);
    for (const auto& [key, value] : results.tensors) {
      noted[key] = {{"dtype", c10::toString(value.scalar_type())},
                    {"shape", value.sizes().vec()},
                    {"begin", end_}};
      append(value.contiguous());
    }
  }
  void add_error(const std::string& name, const std::string& error) {
    index_[name] = {{"error", error}};
  }
  void close() {
    std::ofstream file(path_ + ".json");
    file << index_;
    TORCH_CHECK(file.flush() && data_.flush(), "cannot write ", path_, ".json or .bin");
  }

 private:
  void append(const at::Tensor& value) {
    constexpr size_t kAlignment = 8;
    constexpr std::array<char, kAlignment> kPadding = {};
    const size_t rest = (kAlignment - value.nbytes() % kAlignment) % kAlignment;
    data_.write(static_cast<const char*>(value.const_data_ptr()),
                static_cast<std::streamsize>(value.nbytes()));
    data_.write(kPadding.data(), static_cast<std::streamsize>(rest));
    end_ += value.nbytes() + rest;
  }

  const std::string path_;
  std::ofstream data_;
  size_t end_ = 0;
  json index_ = json::object();
};

void run_all(const std::string& backend, const std::string& cases, const std::string& output) {
  World world = make_world(backend);
  const std::string path = output + '.' + std::to_string(world.group->rank());
  NotedFiles files(path);
  for (const json& row_case : json::parse(std::ifstream(cases))) {
    const std::string name = row_case.at("name").get<std::string>();
    std::ofstream(path + ".at") << name;
    try {
      files.add(name, parity_rows::run_case(row_case, world));
    } catch (const c10::Error& error) {
      files.add_error(name, error.what_without_backtrace());
    } catch (const std::exception& error) {
      files.add_error(name, error.what());
    }
  }
  files.close();
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
