#include "worker/run/random_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

std::string ToHex(const at::Tensor& bytes) {
  std::string text;
  const auto* data = bytes.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i) {
    text.push_back(kHexDigits[data[i] >> 4]);
    text.push_back(kHexDigits[data[i] & 15]);
  }
  return text;
}

at::Tensor FromHex(const std::string& text) {
  const bool is_hex =
      text.size() % 2 == 0 && text.find_first_not_of(kHexDigits) == std::string::npos;
  if (!is_hex) {
    throw ConfigError("training state: rng is not hexadecimal");
  }
  const auto nibble = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size() / 2)}, at::kByte);
  auto* data = bytes.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    data[i / 2] = static_cast<uint8_t>(nibble(text[i]) << 4 | nibble(text[i + 1]));
  }
  return bytes;
}

}  // namespace

std::string CaptureRng() { return ToHex(at::detail::getDefaultCPUGenerator().get_state()); }

void RestoreRng(const std::string& rng) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = FromHex(rng);
  try {
    generator.set_state(state);
  } catch (const c10::Error&) {
    throw ConfigError("training state: rng is not a state of this LibTorch's random numbers");
  }
}

}  // namespace fsdprun::worker
