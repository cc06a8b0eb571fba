#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun {

/// A made-up machine: files as in /dev, /proc and /sys below a folder of their own.
class MachineTree {
 public:
  MachineTree() {
    static std::atomic<int> count{0};
    root_ = testing::TempDir() + "machine_" + std::to_string(::getpid()) + "_" +
            std::to_string(count++);
    std::filesystem::create_directories(root_);
  }
  MachineTree(MachineTree&& other) noexcept : root_(std::exchange(other.root_, "")) {}
  MachineTree(const MachineTree&) = delete;
  MachineTree& operator=(const MachineTree&) = delete;
  MachineTree& operator=(MachineTree&&) = delete;
  ~MachineTree() {
    if (!root_.empty()) {
      RemoveFolder(root_);
    }
  }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void Remove(const std::string& path) const { std::filesystem::remove_all(root_ + "/" + path); }
  void AddNvidia(const std::string& address, int minor, const std::string& uuid,
                 const std::string& node) const {
    Write("dev/nvidia" + std::to_string(minor), "");
    Write("proc/driver/nvidia/gpus/" + address + "/information", "Model: \t\t H100\nGPU UUID: \t " +
                                                                     uuid + "\nDevice Minor: \t " +
                                                                     std::to_string(minor) + "\n");
    Write("sys/bus/pci/devices/" + address + "/numa_node", node);
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

}  // namespace fsdprun
