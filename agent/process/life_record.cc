#include "agent/process/life_record.h"

#include <type_traits>
#include <variant>

namespace fsdprun::keeper {
namespace {

/// Reports of which the last agent may not have made use.
template <class Message>
constexpr bool kIsRepeated =
    std::is_same_v<Message, SpawnedReport> || std::is_same_v<Message, SpawnFailedReport> ||
    std::is_same_v<Message, ExitedReport> || std::is_same_v<Message, LogDegradedReport> ||
    std::is_same_v<Message, AllGoneReport>;

}  // namespace

bool LifeRecord::Begin(int slot, uint64_t life) {
  if (life != life_) {
    life_ = life;
    slots_.clear();
    sizes_.clear();
    shown_.clear();
    reports_.clear();
  }
  const bool is_new = slots_.insert(slot).second;
  if (is_new) {
    ForgetEnd();  // It was the end of those that had been started.
  }
  return is_new;
}

void LifeRecord::ForgetEnd() {
  std::erase_if(reports_, [](const Report& r) { return std::holds_alternative<AllGoneReport>(r); });
}

void LifeRecord::Shown(const ShownCommand& shown) {
  if (shown.life == life_) {
    shown_[{shown.local_rank, shown.stream}] = shown.offset;
  }
}

void LifeRecord::Note(const Report& report) {
  std::visit(
      [this, &report](const auto& message) {
        using Message = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<Message, LogGrewReport>) {
          if (message.life == life_) {
            sizes_[{message.local_rank, message.stream}] = message.size_bytes;
          }
        } else if constexpr (std::is_same_v<Message, AllGoneReport>) {
          // Each order to kill is answered; the last answer is all that there is to say.
          ForgetEnd();
          reports_.push_back(report);
        } else if constexpr (kIsRepeated<Message>) {
          if (message.life == life_) {
            reports_.push_back(report);
          }
        }
      },
      report);
}

std::string LifeRecord::Tell(int32_t keeper_pid, std::string_view output) const {
  std::string out;
  AppendReport(HelloReport{.pid = keeper_pid}, out);
  AppendReport(MemoReport{memo_}, out);
  for (const auto& [key, offset] : shown_) {
    AppendReport(ShownReport{key.first, key.second, offset, life_}, out);
  }
  for (const auto& [key, size] : sizes_) {
    AppendReport(LogGrewReport{key.first, key.second, size, life_}, out);
  }
  std::string_view frame;
  while (NextFrame(output, kMaxReportBytes, frame) == FrameState::kComplete) {
    if (IsOutput(frame)) {
      out.append(output.substr(0, kFrameHeaderBytes + frame.size()));
    }
    output.remove_prefix(kFrameHeaderBytes + frame.size());
  }
  for (const Report& report : reports_) {
    AppendReport(report, out);
  }
  return out;
}

}  // namespace fsdprun::keeper
