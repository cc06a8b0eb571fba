#pragma once

// A device whose streams are only an order: LibTorch runs everything at once on the CPU, and this
// keeps what streams and events promise about it. So any use of memory that the order does not put
// behind another one it conflicts with is found in any run, whatever the speed of a real device;
// except for the first write of memory that an operator allocates, and copies to the host.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace fsdp::testing {

/// Two uses of the same memory, one of which writes, that no wait puts in order.
struct Race {
  std::string earlier;  // as it was issued: "copy_ on a gather lane in forward"
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
  /// Where c10 streams and events are the fake ones.
  static c10::Device device() { return {c10::kPrivateUse1, 0}; }

  /// From here to stop() all operations of ATen count as launched on the current stream, and memory
  /// that is freed as written on the stream on which it was allocated, which may use it again.
  void start();
  void stop();

  /// Part of the names of what is launched from here on.
  void set_phase(std::string phase) { phase_ = std::move(phase); }
  /// Leaves out the waits of stream `waiting` for what stream `awaited` has been given: a mutant.
  using Leaves = std::function<bool(int64_t waiting, int64_t awaited)>;
  void leave_out_waits(Leaves leaves) { leaves_ = std::move(leaves); }

  const std::map<Race, int>& races() const { return races_; }
  /// Calls of an operator, by others too.
  int count(const std::string& name) const;
  /// How often the host has waited for the device, or read from it.
  int host_waits() const { return host_waits_; }
  std::string text_of_races() const;
  /// Of all lanes, in the order of issue: "reduce_scatter for unit block0 on stream 2".
  const std::vector<std::string>& launches() const { return launches_; }

  // To be called by the fake streams and the callbacks.
  using Clock = std::vector<int64_t>;  // by stream: how much of it has been ordered before
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
  void count_operator(const std::string& name);
  void use(int64_t stream, const std::string& name, const char* begin, const char* end,
           bool writes);
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

  Clock& clock_of(int64_t stream);

  bool is_watching_ = false;
  int64_t current_ = 0;
  int64_t streams_ = 1;
  std::string phase_;
  Leaves leaves_;
  std::vector<Clock> clocks_;
  std::map<const char*, std::vector<Use>> uses_;  // by page of memory
  std::map<Race, int> races_;
  std::map<std::string, int> counts_;
  std::vector<std::string> launches_;
  int host_waits_ = 0;
  uint64_t callback_ = 0;
};

}  // namespace fsdp::testing
