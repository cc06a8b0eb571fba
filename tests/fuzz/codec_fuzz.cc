// Bytes from the network -> protobuf -> message. Properties of accepted messages: fields are in the
// range on which the state machines rely, and the message is equal after a round trip. First byte
// of the input: 'a' for an agent's message, 'c' for the coordinator's.

#include <arpa/inet.h>

#include <string>
#include <variant>

#include "agent/rpc/codec.h"
#include "base/check.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/sim/wire.h"

namespace fsdprun {
namespace {

/// Encoding truncates longer texts by design.
constexpr size_t kInputBytesMax = 4096;

bool IsCString(const std::string& text) { return text.find('\0') == std::string::npos; }

/// Several fields become environment variables of the workers.
void CheckMessage(const ToAgent& message) {
  if (const auto* prepare = std::get_if<PrepareGeneration>(&message.message)) {
    const RankAssignment& place = prepare->assignment;
    FSDPRUN_CHECK(IsCString(place.role) && IsCString(place.launch_id),
                  "zero byte in an environment variable");
    FSDPRUN_CHECK(place.rank_offset >= 0 && place.local_world_size >= 1 &&
                      place.rank_offset + place.local_world_size <= place.world_size,
                  "ranks outside the world");
    FSDPRUN_CHECK(place.group_rank >= 0 && place.group_rank < place.group_world_size,
                  "group rank out of range");
  } else if (const auto* admit = std::get_if<AdmitAgent>(&message.message)) {
    FSDPRUN_CHECK(!admit->terms || (admit->terms->min_nodes >= 1 &&
                                    admit->terms->min_nodes <= admit->terms->max_nodes),
                  "node counts out of range");
  } else if (const auto* commit = std::get_if<CommitGeneration>(&message.message)) {
    FSDPRUN_CHECK(IsCString(commit->store.address), "zero byte in the store's address");
    FSDPRUN_CHECK(commit->store.port >= 1 && commit->store.port <= 65535,
                  "store port out of range");
  }
}

void CheckMessage(const FromAgent& message) {
  FSDPRUN_CHECK(message.incarnation != Incarnation(), "incarnation 0 accepted");
  if (const auto* joined = std::get_if<AgentJoined>(&message.message)) {
    FSDPRUN_CHECK(joined->node.local_world_size >= 1, "node without workers accepted");
    FSDPRUN_CHECK(IsCString(joined->node.role) && IsCString(joined->node.address),
                  "zero byte in an environment variable");
  } else if (const auto* exited = std::get_if<WorkerExited>(&message.message)) {
    FSDPRUN_CHECK(exited->exit.exit_code >= 0 && exited->exit.exit_code <= 255,
                  "exit code out of range");
  } else if (const auto* ended = std::get_if<WorkersEnded>(&message.message)) {
    for (const WorkerExit& exit : ended->exits) {
      FSDPRUN_CHECK(exit.exit_code >= 0 && exit.exit_code <= 255, "exit code out of range");
    }
  } else if (const auto* prepared = std::get_if<AgentPrepared>(&message.message)) {
    FSDPRUN_CHECK(!prepared->store || IsCString(prepared->store->address),
                  "zero byte in the store's address");
  }
}

template <class Wire>
void Fuzz(std::string_view bytes) {
  Wire wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return;
  }
  const auto message = Decode(wire);
  if (!message.ok()) {
    FSDPRUN_CHECK(message.status().code() == absl::StatusCode::kInvalidArgument,
                  "wrong status code");
    FSDPRUN_CHECK(fuzz::IsOneLine(std::string(message.status().message())),
                  "error message is not one line");
    return;
  }
  CheckMessage(*message);
  FSDPRUN_CHECK(sim::OverTheWire(*message).ok(), "message differs after a round trip");
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fsdprun::fuzz::AsText(data, size);
  if (size > fsdprun::kInputBytesMax) {
    return 0;
  }
  if (input.starts_with('a')) {
    fsdprun::Fuzz<fsdprun::v1::AgentMessage>(input.substr(1));
  } else if (input.starts_with('c')) {
    fsdprun::Fuzz<fsdprun::v1::CoordinatorMessage>(input.substr(1));
  }
  return 0;
}
