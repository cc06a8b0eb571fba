// The byte stream between agent and keeper -> frames -> commands and reports. Properties: encoding
// a decoded frame gives the same bytes; decoded fields are in range.

#include <string>
#include <variant>

#include "agent/process/keeper_protocol.h"
#include "base/check.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun::keeper {
namespace {

std::string Encode(const Command& command) {
  std::string out;
  AppendCommand(command, out);
  return out;
}

std::string Encode(const Report& report) {
  std::string out;
  AppendReport(report, out);
  return out;
}

/// Fields that the keeper passes to the kernel without further checks.
void CheckCommand(const Command& command) {
  if (const auto* spawn = std::get_if<SpawnCommand>(&command)) {
    FSDPRUN_CHECK(spawn->local_rank >= 0 && spawn->local_rank <= kMaxLocalRank,
                  "local rank out of range");
    FSDPRUN_CHECK(!spawn->argv.empty(), "empty argv");
    for (const auto* list : {&spawn->argv, &spawn->environment}) {
      for (const std::string& text : *list) {
        FSDPRUN_CHECK(text.find('\0') == std::string::npos, "zero byte in a C string");
      }
    }
  } else if (const auto* signal = std::get_if<SignalCommand>(&command)) {
    FSDPRUN_CHECK(signal->signal >= 1 && signal->signal <= 64, "signal out of range");
    FSDPRUN_CHECK(signal->local_rank >= kAllRanks && signal->local_rank <= kMaxLocalRank,
                  "local rank out of range");
  } else if (const auto* to_process = std::get_if<SignalProcessCommand>(&command)) {
    FSDPRUN_CHECK(to_process->signal >= 1 && to_process->signal <= 64, "signal out of range");
    FSDPRUN_CHECK(to_process->pid > 0, "the number of a process group");
  }
}

void FuzzFrame(std::string_view whole, std::string_view frame) {
  {
    const fuzz::MemoryBound bound((16 << 10) + 32 * frame.size());
    const std::optional<Command> command = DecodeCommand(frame);
    const std::optional<Report> report = DecodeReport(frame);
    FSDPRUN_CHECK(!command || !report, "frame decodes as command and as report");
  }
  if (const std::optional<Command> command = DecodeCommand(frame)) {
    CheckCommand(*command);
    FSDPRUN_CHECK(Encode(*command) == whole, "command differs after a round trip");
  }
  if (const std::optional<Report> report = DecodeReport(frame)) {
    FSDPRUN_CHECK(Encode(*report) == whole, "report differs after a round trip");
  }
}

void Fuzz(std::string_view stream) {
  for (;;) {
    std::string_view frame;
    const FrameState state = NextFrame(stream, kMaxReportBytes, frame);
    if (state != FrameState::kComplete) {
      return;
    }
    const size_t size = kFrameHeaderBytes + frame.size();
    FSDPRUN_CHECK(!frame.empty() && size <= stream.size(), "frame outside the stream");
    std::string_view part;
    FSDPRUN_CHECK(
        NextFrame(stream.substr(0, size - 1), kMaxReportBytes, part) == FrameState::kIncomplete,
        "prefix of a frame is not incomplete");
    FuzzFrame(stream.substr(0, size), frame);
    stream.remove_prefix(size);
  }
}

}  // namespace
}  // namespace fsdprun::keeper

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::keeper::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
