#include "fsdp_runtime/src/init/random_streams.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <mutex>

namespace fsdp {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

RandomStreams::~RandomStreams() { finish(); }

size_t RandomStreams::begin_stream(c10::Device device) {
  at::Generator source = at::globalContext().defaultGenerator(device);
  const at::Tensor begin = state_of(source);
  at::Generator copy;
  {
    const std::lock_guard<std::mutex> lock(source.mutex());
    copy = source.clone();
  }
  at::empty({1}, at::TensorOptions(at::kFloat).device(device)).uniform_(0.0, 1.0, source);
  std::erase_if(marks_, [&](const Mark& mark) { return mark.device == device; });
  marks_.push_back({device, streams_.size(), state_of(source)});
  streams_.push_back({source, begin, copy});
  return streams_.size() - 1;
}

size_t RandomStreams::stream_now(c10::Device device) {
  const auto mark = std::find_if(marks_.begin(), marks_.end(),
                                 [&](const Mark& known) { return known.device == device; });
  if (mark == marks_.end() || !at::equal(mark->state, state_of(streams_[mark->stream].source))) {
    return begin_stream(device);
  }
  return mark->stream;
}

void RandomStreams::finish() {
  for (const Mark& mark : marks_) {
    at::Generator& source = streams_[mark.stream].source;
    if (at::equal(mark.state, state_of(source))) {
      const std::lock_guard<std::mutex> lock(source.mutex());
      source.set_state(streams_[mark.stream].begin);
    }
  }
  marks_.clear();
}

}  // namespace fsdp
