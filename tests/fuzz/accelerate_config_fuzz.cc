// A configuration of accelerate -> the variables of a script, and the settings of fsdp-train.
// Properties: memory in proportion to the input; the documented exception with one line that names
// the file; variables that an environment can hold; settings that are valid.

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

#include "base/check.h"
#include "formats/accelerate/accelerate_config.h"
#include "formats/accelerate/accelerate_environment.h"
#include "tests/fuzz/fuzz_support.h"
#include "worker/config/accelerate_settings.h"
#include "worker/config/resolve.h"

namespace fsdprun {
namespace {

bool IsVariableName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isupper(c) != 0 || std::isdigit(c) != 0 || c == '_';
  });
}

/// Calls `read`; nullopt if it throws the documented exception.
template <class Read>
auto Accepted(Read&& read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    FSDPRUN_CHECK(std::string_view(error.what()).starts_with("the file"), "an error of no file");
    return std::nullopt;
  }
}

void CheckVariables(const AccelerateConfig& config) {
  for (const auto& [name, value] : AccelerateEnvironment(config)) {
    FSDPRUN_CHECK(IsVariableName(name), "no name of a variable");
    FSDPRUN_CHECK(value.empty() || fuzz::IsOneLine(value), "a value with control characters");
  }
}

void Fuzz(std::string_view input) {
  const fuzz::MemoryBound bound((256 << 10) + 4096 * input.size());
  const auto config = Accepted([&] { return AccelerateConfig(input, "the file"); });
  if (!config) {
    return;
  }
  for (const std::string& warning : config->warnings()) {
    FSDPRUN_CHECK(fuzz::IsOneLine(warning), "a warning is not one line");
  }
  CheckVariables(*config);
  for (const worker::AccelerateWorld& world :
       {worker::AccelerateWorld{}, worker::AccelerateWorld{4, 2}}) {
    if (const auto settings =
            Accepted([&] { return worker::SettingsOfAccelerate(*config, world); })) {
      worker::ResolveConfig({.settings = settings->settings,
                             .settings_source = "the file",
                             .overrides = {"model.config=m", "data.train=[\"t\"]"}});
    }
  }
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
