#include "worker/checkpoint/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "worker/checkpoint/channel.h"

namespace fsdprun::checkpoint {
namespace {

constexpr char kGood = 'K';
constexpr char kFailed = 'E';

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string Failed(int error_number, const char* message) {
  return kFailed + std::to_string(error_number) + " " + OneLine(message);
}

/// kGood and the result, or kFailed, the errno and the message.
std::string Outcome(const std::function<std::string()>& attempt) {
  try {
    return kGood + attempt();
  } catch (const CheckpointError& error) {
    return Failed(error.error_number(), error.what());
  } catch (const std::bad_alloc& error) {
    return Failed(ENOMEM, "out of memory");
  } catch (const c10::OutOfMemoryError& error) {
    return Failed(ENOMEM, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool is_memory = text.find("can't allocate memory") != std::string::npos;
    return Failed(is_memory ? ENOMEM : kNotOfFiles, text.c_str());
  } catch (const std::exception& error) {
    return Failed(0, error.what());
  }
}

/// The error of an outcome that begins with kFailed.
CheckpointError ErrorOf(const std::string& outcome) {
  const size_t space = outcome.find(' ');
  return CheckpointError(outcome.substr(space + 1), std::stoi(outcome.substr(1, space - 1)));
}

/// Errors: that of the outcome.
std::string ResultOf(const std::string& outcome) {
  if (outcome[0] == kFailed) {
    throw ErrorOf(outcome);
  }
  return outcome.substr(1);
}

/// Of all ranks. Errors: the first rank's that has one, and how many others have.
std::vector<std::string> ResultsOf(std::vector<std::string> outcomes) {
  std::string failure;
  int error_number = 0;
  size_t failed_count = 0;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank][0] == kFailed && ++failed_count == 1) {
      failure = outcomes.size() > 1 ? "rank " + std::to_string(rank) + ": " : std::string();
      const CheckpointError error = ErrorOf(outcomes[rank]);
      failure += error.what();
      error_number = error.error_number();
    }
    outcomes[rank].erase(0, 1);
  }
  if (failed_count > 1) {
    failure += " (and " + std::to_string(failed_count - 1) + " more ranks failed)";
  }
  if (failed_count > 0) {
    throw CheckpointError(failure, error_number);
  }
  return outcomes;
}

at::Tensor OnHost(const at::Tensor& tensor) { return tensor.to(at::kCPU); }

/// A byte tensor of `byte_count` that starts with `text`.
at::Tensor ToTensor(const std::string& text, int64_t byte_count, at::Device device) {
  at::Tensor bytes = at::zeros({byte_count}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes.to(device);
}

}  // namespace

std::vector<std::string> GatherTexts(const Group& group, const std::string& mine) {
  const int64_t world_size = group.collectives->size();
  const at::Tensor length =
      at::zeros({1}, at::kLong).fill_(static_cast<int64_t>(mine.size())).to(group.device);
  at::Tensor lengths = at::zeros({world_size}, at::kLong).to(group.device);
  group.collectives->all_gather_into(lengths, length)->wait();
  lengths = OnHost(lengths);
  const int64_t* counts = lengths.const_data_ptr<int64_t>();
  // Padded to eight bytes: some transports require aligned pieces.
  const int64_t stride =
      (std::max<int64_t>(*std::max_element(counts, counts + world_size), 1) + 7) & ~int64_t{7};
  at::Tensor all = at::zeros({world_size * stride}, at::kByte).to(group.device);
  const at::Tensor piece = ToTensor(mine, stride, group.device);
  group.collectives->all_gather_into(all, piece)->wait();
  all = OnHost(all);
  const char* bytes = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    texts.emplace_back(bytes + rank * stride, static_cast<size_t>(counts[rank]));
  }
  return texts;
}

std::string BroadcastText(const Group& group, const std::string& mine) {
  if (group.channel) {
    return group.channel->Broadcast(mine);
  }
  const bool is_source = group.collectives->rank() == 0;
  at::Tensor length =
      at::zeros({1}, at::kLong).fill_(static_cast<int64_t>(mine.size())).to(group.device);
  group.collectives->broadcast(length, 0)->wait();
  const int64_t byte_count = OnHost(length).const_data_ptr<int64_t>()[0];
  if (byte_count == 0) {
    return {};
  }
  at::Tensor bytes = ToTensor(is_source ? mine : std::string(), byte_count, group.device);
  group.collectives->broadcast(bytes, 0)->wait();
  bytes = OnHost(bytes);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(byte_count)};
}

std::vector<std::string> AttemptOnAll(const Group& group,
                                      const std::function<std::string()>& attempt) {
  return ResultsOf(GatherTexts(group, Outcome(attempt)));
}

std::string AttemptAndConclude(
    const Group& group, const std::function<std::string()>& attempt,
    const std::function<std::string(const std::vector<std::string>&)>& conclude) {
  const auto answer = [&](const std::vector<std::string>& outcomes) {
    return Outcome([&] { return conclude(ResultsOf(outcomes)); });
  };
  const std::string mine = Outcome(attempt);
  if (group.channel) {
    return ResultOf(group.channel->Ask(mine, answer));
  }
  const std::vector<std::string> outcomes = GatherTexts(group, mine);
  const bool is_rank0 = group.collectives->rank() == 0;
  return ResultOf(BroadcastText(group, is_rank0 ? answer(outcomes) : std::string()));
}

std::string AttemptOnRank0(const Group& group, const std::function<std::string()>& attempt) {
  const bool is_rank0 = group.collectives->rank() == 0;
  return ResultOf(BroadcastText(group, is_rank0 ? Outcome(attempt) : std::string()));
}

void EmitWarning(const Group& group, const std::string& message) {
  if (group.collectives->rank() != 0) {
    return;
  }
  if (group.warn) {
    group.warn(message);
  } else {
    std::fprintf(stderr, "warning: checkpoint: %s\n", message.c_str());
  }
}

}  // namespace fsdprun::checkpoint
