#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fsdp/process_group.h>

#include <algorithm>
#include <filesystem>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/world.h"
#include "fsdp_runtime/src/comm/gloo_collectives.h"
#include "fsdp_runtime/src/comm/nccl_entry.h"
#include "fsdp_runtime/src/comm/shm_collectives.h"
#include "fsdp_runtime/src/comm/single_collectives.h"
#include "fsdp_runtime/store/store_client.h"

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
}

// The store as the transport wants it: keys under the group's prefix.
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
  try {
    // The server listens on every address; its built-in client needs only the loopback.
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", server);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "init_process_group: rank 0 cannot serve the store on port ",
                options.master_port,
                " (is another job using it? set MASTER_PORT to a free one): ", error.what());
  }
}

// What each rank says of the machine it is on; throws naming the ranks that never came.
std::vector<std::string> exchange_hosts(StoreExchange& exchange, const ProcessGroupOptions& options,
                                        TimePoint deadline) {
  exchange.put("host/" + std::to_string(options.rank), shm::host_identity());
  std::vector<std::string> hosts;
  std::string missing;
  for (int64_t rank = 0; rank < options.world_size; ++rank) {
    try {
      hosts.push_back(exchange.get("host/" + std::to_string(rank), deadline));
    } catch (const StoreTimeout&) {
      // Past the deadline the rest is asked without waiting, to name all that are missing.
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    }
  }
  TORCH_CHECK(missing.empty(), "init_process_group: rank ", options.rank, " waited ",
              options.timeout.count(), " ms, and of ", options.world_size,
              " ranks these have not arrived: ", missing);
  return hosts;
}

CollectivesPtr form_shm(StoreExchange& exchange, const ProcessGroupOptions& options) {
  auto world = shm::attach(exchange, static_cast<int>(options.rank),
                           static_cast<int>(options.world_size), options.timeout);
  return make_shm_collectives(std::move(world), options.rank, options.timeout);
}

std::filesystem::path own_folder() {
  Dl_info info{};
  TORCH_CHECK(::dladdr(reinterpret_cast<const void*>(&init_process_group), &info) != 0,
              "init_process_group: cannot find libfsdp's own folder");
  return std::filesystem::path(info.dli_fname).parent_path();
}

// In a library of its own, so that CPU training never loads CUDA.
CollectivesPtr form_nccl(const StorePtr& store, const ProcessGroupOptions& options) {
  const std::string path = own_folder() / kNcclLibrary;
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  TORCH_CHECK(library != nullptr, "init_process_group: backend nccl needs ", path,
              " and a CUDA build of LibTorch: ", ::dlerror(),
              "; choose backend gloo or shm to train on CPUs");
  auto make = reinterpret_cast<MakeNcclCollectives>(::dlsym(library, kNcclEntry));
  TORCH_CHECK(make != nullptr, "init_process_group: ", path, " has no entry ", kNcclEntry,
              "; it is of another version");
  const std::unique_ptr<CollectivesPtr> made(make(store, options));
  return *made;
}

CollectivesPtr form_on_cpu(const StorePtr& store, const ProcessGroupOptions& options,
                           TimePoint deadline) {
  StoreExchange exchange(store, options.store_prefix);
  const std::vector<std::string> hosts = exchange_hosts(exchange, options, deadline);
  const bool is_one_host = std::all_of(hosts.begin(), hosts.end(),
                                       [&](const std::string& host) { return host == hosts[0]; });
  TORCH_CHECK(options.backend != "shm" || is_one_host,
              "init_process_group: backend shm needs all ranks on one host, under one user and in "
              "one pid namespace; choose backend gloo");
  if (options.backend != "gloo" && is_one_host) {
    try {
      return form_shm(exchange, options);
    } catch (const shm::Unavailable& error) {
      // Every rank comes here: attach() makes them agree.
      TORCH_CHECK(options.backend == "auto", "init_process_group: ", error.what());
    } catch (const shm::Error& error) {
      TORCH_CHECK(false, "init_process_group: ", error.what());
    }
  }
  return make_gloo_collectives(store, options.store_prefix, options.rank, options.world_size,
                               options.timeout);
}

// Keeps the served store for as long as the group lives.
struct Served {
  c10::intrusive_ptr<c10d::TCPStore> store;
  CollectivesPtr group;
};

CollectivesPtr form(const ProcessGroupOptions& options) {
  const bool is_nccl =
      options.backend == "nccl" || (options.backend == "auto" && options.device_type == c10::kCUDA);
  if (options.world_size == 1 && !is_nccl) {
    return make_single_collectives("single");
  }
  if (options.world_size == 1) {
    return form_nccl(nullptr, options);
  }
  auto served = std::make_shared<Served>();
  if (options.host_store) {
    served->store = serve_store(options);
  }
  const TimePoint deadline = std::chrono::steady_clock::now() + options.timeout;
  auto store = std::make_shared<StoreClient>(options.host_store ? "127.0.0.1" : options.master_addr,
                                             options.master_port, options.timeout);
  served->group = is_nccl ? form_nccl(store, options) : form_on_cpu(store, options, deadline);
  served->group->barrier();
  return served->store ? CollectivesPtr(served, served->group.get()) : served->group;
}

}  // namespace

CollectivesPtr init_process_group(const ProcessGroupOptions& options) {
  check_options(options);
  try {
    return form(options);
  } catch (const StoreError& error) {
    TORCH_CHECK(false, "init_process_group: rank ", options.rank, ": ", error.what());
  }
}

}  // namespace fsdp
