#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fsdp/process_group.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/world.h"
#include "fsdp_runtime/src/comm/gloo_collectives.h"
#include "fsdp_runtime/src/comm/nccl_entry.h"
#include "fsdp_runtime/src/comm/shm_collectives.h"
#include "fsdp_runtime/src/comm/sigpipe_block.h"
#include "fsdp_runtime/src/comm/single_collectives.h"
#include "fsdp_runtime/src/comm/store_agreement.h"
#include "fsdp_runtime/store/store_client.h"
#include "fsdp_runtime/store/store_connection.h"

namespace fsdp {
namespace {

using TimePoint = StoreClient::TimePoint;
using StorePtr = std::shared_ptr<StoreClient>;
using CollectivesPtr = std::shared_ptr<Collectives>;

void check_options(const ProcessGroupOptions& options) {
  const std::string& backend = options.backend;
  TORCH_CHECK(backend == "auto" || backend == "shm" || backend == "gloo" || backend == "nccl",
              "init_process_group: backend '", backend, "'; auto, shm, gloo or nccl expected");
  TORCH_CHECK(options.world_size >= 1, "init_process_group: world_size is ", options.world_size);
  TORCH_CHECK(options.rank >= 0 && options.rank < options.world_size, "init_process_group: rank ",
              options.rank, " of a world of ", options.world_size);
  TORCH_CHECK(options.world_size == 1 || (options.master_port > 0 && options.master_port < 65536),
              "init_process_group: master_port is ", options.master_port,
              "; the port of the store expected");
  TORCH_CHECK(options.timeout.count() > 0, "init_process_group: timeout is ",
              options.timeout.count(), " ms; a positive time expected");
}

std::chrono::milliseconds left_until(TimePoint deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

// Successive groups of a process use different keys. Counted per rank, because ranks may be
// threads, and per store, because keys collide only there.
std::string prefix_of_next_group(const ProcessGroupOptions& options) {
  static std::mutex mutex;
  static std::map<std::string, int64_t> counts;
  const std::string key = options.master_addr + " " + std::to_string(options.master_port) + " " +
                          std::to_string(options.rank) + " " + options.store_prefix;
  std::lock_guard lock(mutex);
  return options.store_prefix + "/group" + std::to_string(counts[key]++);
}

// Adapts the store to shm::Exchange, with keys under the group's prefix.
class StoreExchange : public shm::Exchange {
 public:
  StoreExchange(StorePtr store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void put(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + "/" + key, value);
  }
  std::string get(const std::string& key, TimePoint deadline) override {
    return store_->get(prefix_ + "/" + key, deadline);
  }
  /// Does not wait for the key.
  bool has(const std::string& key) { return store_->check({prefix_ + "/" + key}); }

 private:
  const StorePtr store_;
  const std::string prefix_;
};

c10::intrusive_ptr<c10d::TCPStore> serve_store(const ProcessGroupOptions& options) {
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
    TORCH_CHECK(false, "init_process_group: rank 0 cannot serve the store on port ",
                options.master_port,
                " (is another job using it? set MASTER_PORT to a free one): ", error.what());
  }
}

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

// What each rank tells the others before anything else.
struct Arrival {
  std::string backend;
  std::string device_type;
  std::string host;
};

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

CollectivesPtr form_shm(StoreExchange& exchange, const ProcessGroupOptions& options,
                        TimePoint deadline) {
  auto world = shm::attach(exchange, static_cast<int>(options.rank),
                           static_cast<int>(options.world_size), left_until(deadline));
  return make_shm_collectives(std::move(world), options.rank, options.timeout);
}

std::filesystem::path own_folder() {
  Dl_info info{};
  TORCH_CHECK(::dladdr(reinterpret_cast<const void*>(&init_process_group), &info) != 0,
              "init_process_group: cannot find libfsdp's own directory");
  return std::filesystem::path(info.dli_fname).parent_path();
}

bool has_nvidia_driver() {
  return ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
}

// The NCCL backend is a separate library, so that CPU training never loads CUDA. Loaded once and
// never unloaded.
struct NcclLibrary {
  void* handle = nullptr;
  std::string failure;
};
const NcclLibrary& nccl_library() {
  static const NcclLibrary library = [] {
    NcclLibrary loaded;
    const std::string path = own_folder() / kNcclLibrary;
    loaded.handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    loaded.failure = loaded.handle == nullptr ? ::dlerror() : "";
    return loaded;
  }();
  return library;
}

template <typename Entry>
Entry nccl_entry(void* library, const char* name) {
  auto entry = reinterpret_cast<Entry>(::dlsym(library, name));
  TORCH_CHECK(entry != nullptr, "init_process_group: ", kNcclLibrary, " has no entry ", name,
              "; it is a different version");
  return entry;
}

// Each lane has an NCCL communicator. Kernels of two communicators can deadlock if ranks launch
// them in different orders; this makes NCCL (2.26 and newer) keep the order in which they are
// issued. NCCL reads it when the first communicator is made.
void order_launches_across_lanes() { ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0); }

CollectivesPtr form_nccl(const StorePtr& store, const ProcessGroupOptions& options) {
  TORCH_CHECK(has_nvidia_driver(),
              "init_process_group: backend nccl needs a GPU and this machine has no NVIDIA driver; "
              "choose backend gloo or shm to train on CPUs");
  const NcclLibrary& library = nccl_library();
  TORCH_CHECK(library.handle != nullptr, "init_process_group: backend nccl needs ", kNcclLibrary,
              " beside libfsdp and a CUDA build of LibTorch (", library.failure,
              "); choose backend gloo or shm to train on CPUs");
  const auto make = nccl_entry<MakeNcclCollectives>(library.handle, kNcclEntry);
  order_launches_across_lanes();
  const std::unique_ptr<CollectivesPtr> made(make(store, options));
  if (options.world_size == 1) {
    return *made;
  }
  return agree_through_store(
      *made, std::make_shared<StoreClient>(store->host(), store->port(), options.timeout),
      options.store_prefix + "/agreement");
}

// The address on which Gloo listens, which the other ranks must reach. Rank 0 may be connected to
// the store through loopback, so the route to the master's address decides.
std::string gloo_address(const StorePtr& store, const ProcessGroupOptions& options,
                         bool is_one_host) {
  if (is_one_host || gloo_interface()) {
    return store->local_address();
  }
  std::string address = local_address_towards(options.master_addr, options.master_port);
  TORCH_CHECK(address.rfind("127.", 0) != 0 && address != "::1", "init_process_group: rank ",
              options.rank, " would offer the loopback address ", address,
              " to ranks on other hosts, because '", options.master_addr,
              "' resolves to it here; set GLOO_SOCKET_IFNAME to the interface to use, or "
              "MASTER_ADDR to an address of it");
  return address;
}

CollectivesPtr form_on_cpu(const StorePtr& store, const ProcessGroupOptions& options,
                           StoreExchange& exchange, const std::vector<Arrival>& arrivals,
                           TimePoint deadline) {
  const bool is_one_host =
      std::all_of(arrivals.begin(), arrivals.end(),
                  [&](const Arrival& arrival) { return arrival.host == arrivals[0].host; });
  TORCH_CHECK(options.backend != "shm" || is_one_host,
              "init_process_group: backend shm needs all ranks on one host, under one user and in "
              "one pid namespace; choose backend gloo");
  if (options.backend != "gloo" && is_one_host) {
    try {
      return form_shm(exchange, options, deadline);
    } catch (const shm::Unavailable& error) {
      // Thrown on all ranks by attach(), so all of them fall back.
      TORCH_CHECK(options.backend == "auto", "init_process_group: ", error.what());
      if (options.rank == 0) {
        TORCH_WARN("init_process_group: using gloo instead of shared memory: ", error.what());
      }
    } catch (const shm::Error& error) {
      TORCH_CHECK(false, "init_process_group: ", error.what());
    }
  }
  return make_gloo_collectives(store, options.store_prefix,
                               gloo_address(store, options, is_one_host), options.rank,
                               options.world_size, options.timeout);
}

// Keeps the served store alive as long as the group.
struct Served {
  c10::intrusive_ptr<c10d::TCPStore> store;
  CollectivesPtr group;
};

CollectivesPtr form(const ProcessGroupOptions& given) {
  const bool is_nccl =
      given.backend == "nccl" || (given.backend == "auto" && given.device_type == c10::kCUDA);
  if (given.world_size == 1) {
    return is_nccl ? form_nccl(nullptr, given) : make_single_collectives("single");
  }
  const TimePoint deadline = std::chrono::steady_clock::now() + given.timeout;
  ProcessGroupOptions options = given;
  options.store_prefix = prefix_of_next_group(given);
  auto served = std::make_shared<Served>();
  if (options.host_store) {
    served->store = serve_store(options);
  }
  auto store = std::make_shared<StoreClient>(options.host_store ? "127.0.0.1" : options.master_addr,
                                             options.master_port, options.timeout);
  StoreExchange exchange(store, options.store_prefix);
  const std::vector<Arrival> arrivals = exchange_arrivals(exchange, options, deadline);
  require_same_options(exchange, options, arrivals);
  served->group = is_nccl ? form_nccl(store, options)
                          : form_on_cpu(store, options, exchange, arrivals, deadline);
  served->group->barrier();
  return served->store ? CollectivesPtr(served, served->group.get()) : served->group;
}

}  // namespace

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

CollectivesPtr init_process_group(const ProcessGroupOptions& options) {
  check_options(options);
  try {
    return form(options);
  } catch (const StoreError& error) {
    TORCH_CHECK(false, "init_process_group: rank ", options.rank, ": ", error.what());
  }
}

int64_t cuda_device_count() {
  if (!has_nvidia_driver()) {
    return 0;
  }
  const NcclLibrary& library = nccl_library();
  const int64_t devices = library.handle == nullptr ? 0
                                                    : nccl_entry<CountCudaDevices>(
                                                          library.handle, kCountCudaDevicesEntry)();
  if (devices == 0) {
    TORCH_WARN_ONCE("this machine has an NVIDIA driver, but no GPU can be used: ",
                    library.handle == nullptr
                        ? library.failure
                        : "none is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  return devices;
}

}  // namespace fsdp
