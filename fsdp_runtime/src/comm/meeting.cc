#include "fsdp_runtime/src/comm/meeting.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "fsdp_runtime/src/comm/sigpipe_block.h"
#include "fsdp_runtime/store/store_looks.h"

namespace fsdp {
namespace {

using TimePoint = StoreClient::TimePoint;

std::string host_key(int64_t rank) { return "host/" + std::to_string(rank); }

// Asks for each rank once and waits for none, so that the answer is quick also for many ranks.
std::string missing_ranks(StoreExchange& exchange, int64_t world_size) {
  std::string missing;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    if (!exchange.has(host_key(rank))) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  return missing;
}

std::string encode_arrival(const ProcessGroupOptions& options) {
  return options.backend + "\n" + c10::DeviceTypeName(options.device_type, /*lower_case=*/true) +
         "\n" + shm::host_identity();
}

Arrival decode_arrival(const std::string& text) {
  const size_t first = text.find('\n');
  const size_t second = text.find('\n', first + 1);
  TORCH_CHECK(first != std::string::npos && second != std::string::npos,
              "init_process_group: a rank runs another version of libfsdp");
  return {text.substr(0, first), text.substr(first + 1, second - first - 1),
          text.substr(second + 1)};
}

// Of each rank; throws naming the ranks that did not arrive.
std::vector<Arrival> exchange_arrivals(StoreExchange& exchange, const ProcessGroupOptions& options,
                                       TimePoint deadline) {
  exchange.put(host_key(options.rank), encode_arrival(options));
  std::vector<Arrival> arrivals;
  try {
    for (int64_t rank = 0; rank < options.world_size; ++rank) {
      arrivals.push_back(decode_arrival(exchange.get(host_key(rank), deadline)));
    }
    return arrivals;
  } catch (const StoreTimeout&) {
    const std::string missing = missing_ranks(exchange, options.world_size);
    TORCH_CHECK(
        false, "init_process_group: rank ", options.rank, " waited ", options.timeout.count(),
        " ms, and of ", options.world_size, " ranks ",
        missing.empty() ? "the last arrived after that" : "these have not arrived: " + missing);
  }
}

// Returns once all ranks have read the arrivals, if this one serves the store: it leaves with the
// server.
void keep_store_for_others(StoreExchange& exchange, const ProcessGroupOptions& options) {
  const auto key = [](int64_t rank) { return "read/" + std::to_string(rank); };
  try {
    exchange.put(key(options.rank), "1");
    const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (int64_t rank = 0; options.host_store && rank < options.world_size; ++rank) {
      exchange.get(key(rank),
                   std::min(deadline, std::chrono::steady_clock::now() + options.timeout));
    }
  } catch (const StoreError&) {
    // The mismatch is what counts.
  }
}

// All ranks compare the same arrivals, so all throw or none.
void require_same_options(StoreExchange& exchange, const ProcessGroupOptions& options,
                          const std::vector<Arrival>& arrivals) {
  for (size_t rank = 1; rank < arrivals.size(); ++rank) {
    for (const auto& [name, member] : {std::pair("backend", &Arrival::backend),
                                       std::pair("device_type", &Arrival::device_type)}) {
      const std::string& value = arrivals[rank].*member;
      if (value != arrivals[0].*member) {
        keep_store_for_others(exchange, options);
        throw OptionMismatch(static_cast<int64_t>(rank), name, value, arrivals[0].*member);
      }
    }
  }
}

const char kGivenUp[] = "/given up";

}  // namespace

std::string StoreExchange::get(const std::string& key, TimePoint deadline) {
  return wait_in_looks(
      deadline, [&](TimePoint until) { return store_->get(prefix_ + "/" + key, until); },
      [this](bool store_answers) {
        if (store_answers) {
          check();
        } else {
          check_peers_();
        }
      });
}

void StoreExchange::check() {
  const std::string given_up = prefix_ + kGivenUp;
  if (store_->check({given_up})) {
    TORCH_CHECK(false, "init_process_group: ", store_->get(given_up, store_->deadline()));
  }
  check_peers_();
}

void StoreExchange::give_up(int64_t rank, const std::string& why) {
  try {
    store_->compare_set(prefix_ + kGivenUp, "",
                        "rank " + std::to_string(rank) + " gave up: " + why);
  } catch (const StoreError&) {  // NOLINT(bugprone-empty-catch): they see it leave, or time out
  }
}

OptionMismatch::OptionMismatch(int64_t rank, std::string option, std::string value,
                               std::string value_of_rank0)
    : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                 "init_process_group: " + option + " is " + value + " on rank " +
                     std::to_string(rank) + " and " + value_of_rank0 +
                     " on rank 0; give all ranks the same"),
      rank(rank),
      option(std::move(option)),
      value(std::move(value)),
      value_of_rank0(std::move(value_of_rank0)) {}

ServedStore serve_store(const ProcessGroupOptions& options) {
  c10d::TCPStoreOptions server;
  server.port = static_cast<uint16_t>(options.master_port);
  server.isServer = true;
  server.waitWorkers = false;
  server.timeout = options.timeout;
  const SigpipeBlock no_sigpipe;  // The server's thread is started here.
  try {
    // The server listens on every address; its built-in client needs only the loopback.
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", server);
  } catch (const std::exception& error) {
    TORCH_CHECK(
        options.master_port != 0,
        "init_process_group: this process cannot serve a store on any port: ", error.what());
    TORCH_CHECK(false, "init_process_group: rank 0 cannot serve the store on port ",
                options.master_port,
                " (is another job using it? set MASTER_PORT to a free one): ", error.what());
  }
}

std::vector<Arrival> meet_in(StoreExchange& exchange, const ProcessGroupOptions& options,
                             TimePoint deadline) {
  std::vector<Arrival> arrivals = exchange_arrivals(exchange, options, deadline);
  require_same_options(exchange, options, arrivals);
  return arrivals;
}

}  // namespace fsdp
