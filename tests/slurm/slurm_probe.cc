// What launcher/slurm reads, for tests that compare it with a real Slurm.
//   slurm_probe lists        for each line of the input the names of that list, with blanks between
//   slurm_probe allocation   what this process' environment says, as JSON

#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_join.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/node_list.h"

namespace fsdprun {
namespace {

int PrintLists() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto names = ExpandNodeList(line);
    std::cout << (names.ok() ? absl::StrJoin(*names, " ") : std::string(names.status().message()))
              << "\n";
  }
  return 0;
}

int PrintAllocation() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    environment[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  const auto read = ReadAllocation(environment);
  if (!read.ok()) {
    std::cout << read.status().message() << "\n";
    return 1;
  }
  nlohmann::json out = nullptr;
  if (read->has_value()) {
    const SlurmAllocation& allocation = **read;
    out = {{"job", allocation.JobName()},
           {"nodes", allocation.Nodes()},
           {"here", allocation.node_name},
           {"restarts", allocation.restart_count},
           {"cpus_per_task", allocation.cpus_per_task.value_or(0)}};
    if (const auto& task = allocation.task) {
      out["task"] = {task->rank, task->node, task->local_rank, task->tasks};
    }
  }
  std::cout << out << "\n";
  return 0;
}

}  // namespace
}  // namespace fsdprun

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what != "lists" && what != "allocation") {
    std::cerr << "usage: slurm_probe lists|allocation\n";
    return 2;
  }
  return what == "lists" ? fsdprun::PrintLists() : fsdprun::PrintAllocation();
}
