#pragma once

#include <cerrno>
#include <functional>
#include <utility>

#include "formats/checkpoint/file_system.h"

namespace fsdprun::worker {

/// Lets a save be given up: `must_give_up` is asked before every effect, and once it says yes no
/// rank's file is written any further; the save then fails on all ranks with ECANCELED and leaves
/// nothing behind. What follows the ranks' files is quick and is not interrupted.
class StoppableFileSystem : public checkpoint::FileSystem {
 public:
  explicit StoppableFileSystem(std::function<bool()> must_give_up)
      : must_give_up_(std::move(must_give_up)) {}

 protected:
  int Intercept(const checkpoint::Effect& effect) override {
    const bool is_rank_file = effect.name == "write" && effect.path.ends_with(".distcp");
    return must_give_up_() && is_rank_file ? ECANCELED : 0;
  }

 private:
  std::function<bool()> must_give_up_;
};

}  // namespace fsdprun::worker
