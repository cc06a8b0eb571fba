#pragma once

#include <atomic>

namespace fsdprun::checkpoint {

/// While one of these lives, a look at what has `part` in its path, or opening it, fails with
/// `error`, in the whole process, at most `times` times: neither is an effect that a FileSystem
/// announces. One of a kind at a time. A test that uses it has path_fault.cc among its sources.
class PathFault {
 public:
  enum Kind { kLook, kOpen };
  static constexpr int kAlways = 1 << 30;

  /// `part` outlives this object.
  PathFault(Kind kind, const char* part, int error, int times = kAlways);
  ~PathFault();
  PathFault(const PathFault&) = delete;
  PathFault& operator=(const PathFault&) = delete;

  /// Of a call; 0: it does not fail.
  static int ErrorOf(Kind kind, const char* path);

 private:
  const Kind kind_;
};

}  // namespace fsdprun::checkpoint
