#pragma once

// A device whose streams are only an order: LibTorch runs everything at once on the CPU, and this
// keeps what streams and events promise about it. So any use of memory that the order does not put
// behind another one it conflicts with is found in any run, whatever the speed of a real device.
// Memory is given and taken back as by a caching allocator: on the stream on which it was
// allocated, without a wait. It does not see what host code does through a pointer.
//
// Memory of the host is what is allocated as pinned, and what is made of that alone. Operations on
// it are the host's, at once; only copies between it and the device are launched on a stream. The
// host is ordered behind a stream by what it waits for, and a stream behind all that the host has
// done before the launch.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fsdp::testing {

/// Two uses of the same memory, one of which writes, that no wait puts in order; or a read of what
/// nothing has written since it was allocated.
struct Race {
  std::string earlier;  // as it was issued: "copy_ on a gather lane in forward"; or "any write"
  std::string later;
  bool operator<(const Race& other) const {
    return std::tie(earlier, later) < std::tie(other.earlier, other.later);
  }
};

/// What the fake device has seen. Process-wide, as the streams of a device are; of one thread. The
/// streams are numbered from 0, the default one, on which is computed, in the order in which they
/// are taken: the lanes of the first group are 1 and 2, those of the next one 3 and 4.
class FakeDevice {
 public:
  static FakeDevice& get();
  /// As a stream: what the host does itself.
  static constexpr int64_t kHost = -1;
  /// Where c10 streams and events are the fake ones.
  static c10::Device device() { return {c10::kPrivateUse1, 0}; }

  /// From here to stop() all operations of ATen count as launched on the current stream. Memory
  /// that is freed counts as written on the stream on which it was allocated, which may use it
  /// again; memory that is allocated as written on the current stream, which may have used it
  /// before.
  void start();
  void stop();

  /// Part of the names of what is launched from here on.
  void set_phase(std::string phase) { phase_ = std::move(phase); }
  /// Of a stream for what another one has been given.
  struct Wait {
    int64_t waiting = 0;
    int64_t awaited = 0;
    std::string phase;
    bool operator<(const Wait& other) const {
      return std::tie(waiting, awaited, phase) <
             std::tie(other.waiting, other.awaited, other.phase);
    }
  };
  /// Leaves out the waits for which `leaves` holds: a mutant.
  using Leaves = std::function<bool(const Wait& wait)>;
  void leave_out_waits(Leaves leaves) { leaves_ = std::move(leaves); }
  /// The waits that have put something in order that was not before, each kind once.
  const std::set<Wait>& waits() const { return waits_; }

  const std::map<Race, int>& races() const { return races_; }
  /// Calls of an operator, by others too. "to without a wait": copies to a device that are not
  /// waited for. As this device is the CPU, the host might read them before they are there.
  int count(const std::string& name) const;
  /// How often the host has waited for the device, or read from it.
  int host_waits() const { return host_waits_; }
  std::string text_of_races() const;
  /// Of all lanes, in the order of issue: "reduce_scatter for unit block0 on stream 2".
  const std::vector<std::string>& launches() const { return launches_; }

  // To be called by the fake streams and the callbacks.
  // By stream, from the host on: how much of it has been ordered before.
  using Clock = std::vector<int64_t>;
  struct Event {
    int64_t stream = 0;
    Clock clock;
  };
  int64_t current() const { return current_; }
  int64_t exchange(int64_t stream);
  int64_t new_stream();
  Event record(int64_t stream);
  void wait(int64_t stream, const Event& event);
  void count_host_wait() { ++host_waits_; }
  void wait_on_host(const Event& event);
  /// By an operation, not by a wait of the engine, which could be left out.
  void order_host_behind(int64_t stream);
  void count_operator(const std::string& name);
  enum class Access { kRead, kWrite, kReadAndWrite };
  void use(int64_t stream, const std::string& name, const char* begin, const char* end,
           Access access);
  void allocate(const char* begin, const char* end);
  bool is_on_host(const char* begin) const;
  /// Of the host, page-locked.
  bool is_pinned(const char* begin) const;
  /// `is_pinned`: its allocator waits for copies in flight before it gives the memory to others.
  void mark_on_host(const char* begin, const char* end, bool is_pinned);
  /// So is what has not been used yet and `begin` is in.
  void mark_on_host_if_unused(const char* begin);
  void free(int64_t stream, const char* begin, const char* end);
  /// By an operator that has been counted as the first user, or by the host.
  void mark_written(const char* begin, const char* end);
  void launch(const std::string& operation) {
    launches_.push_back(operation + " on stream " + std::to_string(current_));
  }
  bool is_watching() const { return is_watching_; }

 private:
  struct Use {
    int64_t stream = 0;
    int64_t tick = 0;
    std::string name;
    const char* begin = nullptr;
    const char* end = nullptr;
    bool writes = false;
  };

  struct HostMemory {
    const char* end = nullptr;
    bool is_pinned = false;
  };

  static size_t place_of(int64_t stream) { return static_cast<size_t>(stream + 1); }
  static void join(Clock& clock, const Clock& other);
  Clock& clock_of(int64_t stream);
  bool is_unwritten(const char* begin, const char* end) const;

  bool is_watching_ = false;
  int64_t current_ = 0;
  int64_t streams_ = 1;
  std::string phase_;
  Leaves leaves_;
  std::vector<Clock> clocks_;
  std::map<const char*, std::vector<Use>> uses_;  // by page of memory
  std::map<const char*, const char*> unwritten_;  // ranges of memory, begin to end
  std::map<const char*, HostMemory> on_host_;     // by begin
  std::map<const char*, const char*> unused_;     // blocks that nobody has used, begin to end
  std::map<Race, int> races_;
  std::set<Wait> waits_;
  std::map<std::string, int> counts_;
  std::vector<std::string> launches_;
  int host_waits_ = 0;
  uint64_t callback_ = 0;
};

}  // namespace fsdp::testing
