#include "worker/run/save_channel.h"

#include <fsdp/process_group.h>

#include <string>

#include "formats/checkpoint/claim.h"
#include "fsdp_runtime/store/store_client.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/store_channel.h"

namespace fsdprun::worker {
namespace {

/// Of one call, which is made again; so long a channel does not hear that it is cancelled.
constexpr auto kCallTimeout = std::chrono::seconds(2);

}  // namespace

std::shared_ptr<checkpoint::Channel> MakeSaveChannel(const checkpoint::Group& group,
                                                     std::chrono::milliseconds connect_timeout) {
  checkpoint::StoreChannelOptions channel;
  channel.rank = group.collectives->rank();
  channel.size = group.collectives->size();
  if (channel.size == 1) {
    return std::make_shared<checkpoint::LoneChannel>();
  }
  try {
    // The id, because a store may outlive a world whose environment was the same.
    const auto options = fsdp::ProcessGroupOptions::from_environment(at::kCPU);
    channel.prefix = options.store_prefix + "/save-" +
                     checkpoint::AttemptOnRank0(group, [] { return checkpoint::RandomId(); });
    checkpoint::AttemptOnAll(group, [&] {
      const std::string host = options.host_store ? "127.0.0.1" : options.master_addr;
      channel.store = std::make_shared<fsdp::StoreClient>(host, options.master_port,
                                                          connect_timeout, kCallTimeout);
      return std::string();
    });
  } catch (const checkpoint::CheckpointError& error) {
    checkpoint::EmitWarning(group, std::string("checkpoints are written between steps, because the "
                                               "store cannot be reached for more: ") +
                                       error.what());
    return nullptr;
  }
  return std::make_shared<checkpoint::StoreChannel>(std::move(channel));
}

}  // namespace fsdprun::worker
