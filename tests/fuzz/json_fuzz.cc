// Text -> strict JSON document. Properties: accepted text is valid JSON without repeated keys, and
// the document is equal after dump and parse.

#include <string>

#include "base/check.h"
#include "formats/json/strict_json.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun::worker {
namespace {

size_t CountKeys(const Json& value) {
  size_t keys = value.is_object() ? value.size() : 0;
  if (value.is_structured()) {
    for (const Json& item : value) {
      keys += CountKeys(item);
    }
  }
  return keys;
}

size_t CountKeys(std::string_view text) {
  size_t keys = 0;
  const auto count = [&keys](int /*depth*/, Json::parse_event_t event, const Json& /*parsed*/) {
    keys += event == Json::parse_event_t::key;
    return true;
  };
  [[maybe_unused]] const Json parsed = Json::parse(text.begin(), text.end(), count);
  return keys;
}

void Fuzz(std::string_view input) {
  Json document;
  try {
    const fuzz::MemoryBound bound((64 << 10) + 256 * input.size());
    document = ParseStrictJson(input, "the file");
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return;
  }
  FSDPRUN_CHECK(Json::accept(input.begin(), input.end()), "invalid JSON accepted");
  FSDPRUN_CHECK(CountKeys(document) == CountKeys(input), "repeated key accepted");
  FSDPRUN_CHECK(ParseStrictJson(document.dump(), "the dump") == document,
                "document differs after a round trip");
  FSDPRUN_CHECK(fuzz::IsOneLine(Excerpt(document)) && Excerpt(document).size() <= 60,
                "excerpt is not one short line");
}

}  // namespace
}  // namespace fsdprun::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::worker::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
