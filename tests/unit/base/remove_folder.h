#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

namespace fsdprun {

/// Removes a test's folder, for destructors: throws nothing. A thread or a program that the test
/// has left to itself may still make files there, so that a folder is not empty when its turn
/// comes; then it tries again, and the test fails if that does not end.
inline void RemoveFolder(const std::filesystem::path& folder) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::error_code error;
  do {
    std::filesystem::remove_all(folder, error);
    if (!error) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < limit);
  ADD_FAILURE() << "cannot remove the test's folder " << folder << ": " << error.message();
}

}  // namespace fsdprun
