#pragma once

#include <cerrno>
#include <functional>
#include <utility>

#include "formats/checkpoint/file_system.h"

namespace fsdprun::worker {

/// Lets a save be given up: `must_give_up` is asked before a rank's file is written, and before
/// each further part of it. Once it says yes the file is not written any further; the save then
/// fails on all ranks with ECANCELED and leaves nothing behind. What follows the ranks' files is
/// quick and is not interrupted.
class StoppableFileSystem : public checkpoint::FileSystem {
 public:
  /// Until GiveUpIf, nothing is given up.
  StoppableFileSystem() = default;
  explicit StoppableFileSystem(std::function<bool()> must_give_up)
      : must_give_up_(std::move(must_give_up)) {}

  /// Before the first effect.
  void GiveUpIf(std::function<bool()> must_give_up) { must_give_up_ = std::move(must_give_up); }
  bool MustGiveUp() const { return must_give_up_ && must_give_up_(); }

 protected:
  int Intercept(const checkpoint::Effect& effect) override {
    const bool is_rank_file = effect.name == "write" && effect.path.ends_with(".distcp");
    return is_rank_file && MustGiveUp() ? ECANCELED : 0;
  }

 private:
  std::function<bool()> must_give_up_;
};

}  // namespace fsdprun::worker
