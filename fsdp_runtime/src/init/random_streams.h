#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

namespace fsdp {

at::Tensor state_of(at::Generator generator);

/// The random numbers that default generators would give from some moment on. While operations are
/// only noted, nothing draws from a generator, so its state tells when somebody has seeded it.
class RandomStreams {
 public:
  /// Puts the generators to where the last streams begin.
  ~RandomStreams();

  /// The stream from which an operation on `device` would draw now: the same one as before, unless
  /// the generator has been set since.
  size_t stream_now(c10::Device device);
  /// What goes on with the stream.
  at::Generator generator(size_t stream) const { return streams_[stream].generator; }
  /// No more stream_now(): puts the generators back.
  void finish();

 private:
  struct Stream {
    at::Generator source;     // the device's own
    at::Tensor begin;         // its state
    at::Generator generator;  // a copy from there
  };
  struct Mark {
    c10::Device device;
    size_t stream;
    at::Tensor state;  // of the source, which is behind `begin`, so that seeding it again shows
  };

  size_t begin_stream(c10::Device device);

  std::vector<Stream> streams_;
  std::vector<Mark> marks_;  // one per device
};

}  // namespace fsdp
