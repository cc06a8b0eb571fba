#include <c10/util/Exception.h>
#include <fsdp/process_group.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/world.h"
#include "fsdp_runtime/src/comm/device_operation.h"
#include "fsdp_runtime/src/comm/formed_collectives.h"
#include "fsdp_runtime/src/comm/gloo_collectives.h"
#include "fsdp_runtime/src/comm/meeting.h"
#include "fsdp_runtime/src/comm/nccl_library.h"
#include "fsdp_runtime/src/comm/own_address.h"
#include "fsdp_runtime/src/comm/shm_collectives.h"
#include "fsdp_runtime/src/comm/single_collectives.h"
#include "fsdp_runtime/src/comm/store_agreement.h"
#include "fsdp_runtime/src/comm/survivors.h"
#include "fsdp_runtime/src/comm/worlds.h"
#include "fsdp_runtime/src/trace/trace_file.h"
#include "fsdp_runtime/store/store_client.h"
#include "fsdp_runtime/store/tcp.h"

namespace fsdp {
namespace {

using TimePoint = StoreClient::TimePoint;
using StorePtr = std::shared_ptr<StoreClient>;
using CollectivesPtr = std::shared_ptr<Collectives>;
using FormedPtr = std::shared_ptr<FormedCollectives>;

bool uses_no_store(const ProcessGroupOptions& options) {
  return options.world_size == 1 && !options.communicates_alone;
}

void check_options(const ProcessGroupOptions& options) {
  const std::string& backend = options.backend;
  TORCH_CHECK(backend == "auto" || backend == "shm" || backend == "gloo" || backend == "nccl",
              "init_process_group: backend '", backend, "'; auto, shm, gloo or nccl expected");
  TORCH_CHECK(options.world_size >= 1, "init_process_group: world_size is ", options.world_size);
  TORCH_CHECK(options.rank >= 0 && options.rank < options.world_size, "init_process_group: rank ",
              options.rank, " of a world of ", options.world_size);
  const int port_min = options.world_size == 1 ? 0 : 1;
  TORCH_CHECK(
      uses_no_store(options) || (options.master_port >= port_min && options.master_port < 65536),
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
// threads, per store, because keys collide only there, and per size: the survivors of a group have
// other ranks in the next one, and are fewer.
std::string prefix_of_next_group(const ProcessGroupOptions& options) {
  static std::mutex mutex;
  static std::map<std::string, int64_t> counts;
  const std::string key = options.master_addr + " " + std::to_string(options.master_port) + " " +
                          std::to_string(options.rank) + " of " +
                          std::to_string(options.world_size) + " " + options.store_prefix;
  std::lock_guard lock(mutex);
  return options.store_prefix + "/size" + std::to_string(options.world_size) + "/group" +
         std::to_string(counts[key]++);
}

// This process may not reach the server by the address that others use.
std::string store_address(const ProcessGroupOptions& options, const ServedStore& served) {
  return served ? "127.0.0.1" : options.master_addr;
}

/// What the ranks of a group know of each other while they form it.
struct Formation {
  ProcessGroupOptions options;
  TimePoint deadline;
  StorePtr store;
  std::unique_ptr<StoreExchange> exchange;
  std::vector<Arrival> arrivals;
  GroupPlace place;

  bool is_world() const { return place.world_ranks.empty(); }
  bool is_one_host() const {
    return std::all_of(arrivals.begin(), arrivals.end(),
                       [&](const Arrival& arrival) { return arrival.host == arrivals[0].host; });
  }
};

FormedPtr form_shm(const Formation& formation) {
  auto world = shm::attach(*formation.exchange, static_cast<int>(formation.place.rank),
                           static_cast<int>(formation.place.size), left_until(formation.deadline));
  return make_shm_collectives(std::move(world), formation.place);
}

// The address on which this rank listens, which the others must reach. Rank 0 may be connected to
// the store through loopback, so that connection does not decide.
std::string own_address(const Formation& formation, bool is_nccl) {
  if (const std::optional<std::string> interface = gloo_interface()) {
    return address_of_interface(*interface);
  }
  if (formation.is_one_host()) {
    return formation.store->local_address();
  }
  const ProcessGroupOptions& options = formation.options;
  const char* names = is_nccl ? std::getenv("NCCL_SOCKET_IFNAME") : nullptr;
  return choose_address(
      {options.master_addr, local_address_towards(options.master_addr, options.master_port),
       interfaces_to_others(),
       names != nullptr && *names != '\0' ? std::optional<std::string>(names) : std::nullopt});
}

/// The links of a world; its parts use them, too.
void link_ranks(const Formation& formation, bool is_nccl) {
  if (!formation.is_world()) {
    return;
  }
  const std::string address = own_address(formation, is_nccl);
  try {
    formation.place.membership->connect(
        std::make_unique<PeerLinks>(*formation.exchange, formation.place.rank, formation.place.size,
                                    address, formation.deadline));
  } catch (const LinkError& error) {
    TORCH_CHECK(false, "init_process_group: ", error.what());
  }
}

/// With comparison of what the ranks issue, which NCCL does not do.
FormedPtr compared(const Formation& formation, CollectivesPtr nccl) {
  return agree_through_store(
      std::move(nccl),
      std::make_shared<StoreClient>(formation.store->host(), formation.store->port(),
                                    formation.options.timeout),
      formation.place.name + "/agreement",
      {.names = formation.place.world_ranks,
       .patience = {},
       .membership = formation.place.membership,
       .group = formation.place.name});
}

FormedPtr form_on_cpu(const Formation& formation) {
  const ProcessGroupOptions& options = formation.options;
  const bool is_one_host = formation.is_one_host();
  TORCH_CHECK(options.backend != "shm" || is_one_host,
              "init_process_group: backend shm needs all ranks on one host, under one user and in "
              "one pid namespace; choose backend gloo");
  if (options.backend != "gloo" && is_one_host) {
    try {
      return form_shm(formation);
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
  link_ranks(formation, /*is_nccl=*/false);
  // Gloo waits for each rank for as long as the group's timeout, whatever becomes of it.
  const auto made = std::make_shared<FormedPtr>();
  form_within(formation.place, [made, store = formation.store, place = formation.place,
                                address = own_address(formation, /*is_nccl=*/false)] {
    *made = make_gloo_collectives(store, address, place);
  });
  return std::move(*made);
}

/// What a group has of the one that it comes from.
struct Origin {
  ServedStore served;                           // by this process, if it does
  std::vector<int64_t> world_ranks = {};        // empty: it is a world of its own
  std::shared_ptr<Membership> membership = {};  // of the world that it is a part of
  CollectivesPtr nccl = {};                     // of the group that is divided, if that has one
  std::function<void()> check = {};             // throws if one of the ranks is known to be gone
};

CollectivesPtr form_or_say(const ProcessGroupOptions& options, Origin origin);

/// Options of a group that meets in the same store as `formation`, which is served as long as one
/// of them lives.
ProcessGroupOptions options_behind(const Formation& formation, const std::string& name) {
  ProcessGroupOptions options = formation.options;
  options.host_store = false;
  options.store_prefix = formation.place.name + "/" + name;
  return options;
}

FormedCollectives::FormPart former_of_parts(const Formation& formation, const Origin& origin,
                                            const CollectivesPtr& nccl) {
  return [options = options_behind(formation, ""), served = origin.served, place = formation.place,
          nccl](const std::string& part, int64_t rank, const std::vector<int64_t>& members) {
    ProcessGroupOptions own = options;
    own.store_prefix += part;
    own.rank = rank;
    own.world_size = static_cast<int64_t>(members.size());
    return form_or_say(own, {served, place.world_ranks_of(members), place.membership, nccl, {}});
  };
}

std::vector<int64_t> numbers(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void check_none_gone(const Membership& world, const std::vector<int64_t>& ranks) {
  const std::set<int64_t> gone = world.gone();
  for (const int64_t rank : ranks) {
    TORCH_CHECK(!gone.contains(rank), "shrink: rank ", rank,
                ", by its number before, died or left while the group was being formed");
  }
}

FormedCollectives::FormShrunk former_of_survivors(const Formation& formation,
                                                  const Origin& origin) {
  const GroupPlace& place = formation.place;
  return [options = options_behind(formation, "shrunk"), served = origin.served,
          own = place.world_rank(place.rank),
          members = formation.is_world() ? numbers(place.size) : place.world_ranks,
          before = place.membership, times = int64_t{0}](
             const std::vector<int64_t>& excluded, std::chrono::milliseconds patience) mutable {
    ProcessGroupOptions next = options;
    next.store_prefix += std::to_string(times);
    const TimePoint deadline = std::chrono::steady_clock::now() + patience;
    std::vector<int64_t> survivors;
    try {
      StoreClient store(store_address(next, served), next.master_port,
                        std::min(next.timeout, patience));
      survivors = agree_on_survivors(
          store, next.store_prefix, own, members, {excluded.begin(), excluded.end()},
          [before] { return before->gone(); }, deadline);
    } catch (const StoreError& error) {
      TORCH_CHECK(false, "shrink: rank ", own, " cannot find the others: ", error.what(),
                  "; if the rank that served the store is gone, so is what the ranks could meet "
                  "at: start the job again, or let the launcher serve the store");
    }
    // Not before: who could not read what was decided asks for it again, and does not meet alone.
    ++times;
    const auto found = std::find(survivors.begin(), survivors.end(), own);
    TORCH_CHECK(found != survivors.end(), "shrink: the other ranks go on without rank ", own,
                ", which was given up or came too late");
    next.rank = found - survivors.begin();
    next.world_size = static_cast<int64_t>(survivors.size());
    const auto membership = std::make_shared<Membership>(next.rank);
    CollectivesPtr world = form_or_say(
        next, {.served = served, .membership = membership, .check = [before, survivors] {
                 check_none_gone(*before, survivors);
               }});
    Worlds::get().replace(before, world, membership);
    return world;
  };
}

Formation begin(const ProcessGroupOptions& given, Origin& origin) {
  Formation formation{given, std::chrono::steady_clock::now() + given.timeout, {}, {}, {}, {}};
  ProcessGroupOptions& options = formation.options;
  options.store_prefix = prefix_of_next_group(given);
  if (options.host_store || options.master_port == 0) {
    origin.served = serve_store(options);
    options.master_port = origin.served->getPort();
  }
  formation.store = std::make_shared<StoreClient>(store_address(options, origin.served),
                                                  options.master_port, options.timeout);
  formation.place = {
      options.rank,
      options.world_size,
      options.timeout,
      options.store_prefix,
      origin.world_ranks,
      origin.membership ? origin.membership : std::make_shared<Membership>(options.rank)};
  formation.exchange = std::make_unique<StoreExchange>(
      formation.store, options.store_prefix, [place = formation.place, check = origin.check] {
        check_groups(place, "forming a group");
        if (check) {
          check();
        }
      });
  return formation;
}

// Keeps the served store alive as long as the group.
struct Served {
  ServedStore store;
  CollectivesPtr group;
};

FormedPtr form_of_met(const Formation& formation, const Origin& origin, bool is_nccl) {
  CollectivesPtr nccl;
  if (is_nccl) {
    link_ranks(formation, /*is_nccl=*/true);
    nccl = make_nccl({formation.store, formation.options, formation.place, origin.nccl});
  }
  FormedPtr group = is_nccl ? compared(formation, nccl) : form_on_cpu(formation);
  group->set_form_part(former_of_parts(formation, origin, nccl));
  group->set_form_shrunk(former_of_survivors(formation, origin));
  group->barrier();
  return group;
}

CollectivesPtr form(const ProcessGroupOptions& given, Origin origin) {
  const bool is_nccl =
      given.backend == "nccl" || (given.backend == "auto" && given.device_type == c10::kCUDA);
  if (uses_no_store(given)) {
    const GroupPlace place = {
        0,
        1,
        given.timeout,
        given.store_prefix,
        origin.world_ranks,
        origin.membership ? origin.membership : std::make_shared<Membership>(given.rank)};
    return is_nccl ? make_nccl({nullptr, given, place, origin.nccl})
                   : make_single_collectives("single", c10::kCPU, place);
  }
  Formation formation = begin(given, origin);
  FormedPtr group;
  try {
    formation.arrivals = meet_in(*formation.exchange, formation.options, formation.deadline);
    group = form_of_met(formation, origin, is_nccl);
  } catch (const OptionMismatch&) {
    throw;  // Each finds it out for itself, and stays until all have.
  } catch (const std::exception& error) {
    const auto* said = dynamic_cast<const c10::Error*>(&error);
    formation.exchange->give_up(given.rank,
                                said != nullptr ? said->what_without_backtrace() : error.what());
    throw;
  }
  if (!origin.served) {
    return group;
  }
  const auto kept = std::make_shared<Served>(Served{std::move(origin.served), std::move(group)});
  return CollectivesPtr(kept, kept->group.get());
}

CollectivesPtr form_or_say(const ProcessGroupOptions& options, Origin origin) {
  try {
    return form(options, std::move(origin));
  } catch (const StoreError& error) {
    TORCH_CHECK(false, "init_process_group: rank ", options.rank, ": ", error.what());
  }
}

}  // namespace

CollectivesPtr init_process_group(const ProcessGroupOptions& options) {
  check_options(options);
  const auto membership = std::make_shared<Membership>(options.rank);
  CollectivesPtr world = form_or_say(options, {.served = {}, .membership = membership});
  Worlds::get().add(world, membership);
  trace::start_from_environment(options.rank);
  return world;
}

}  // namespace fsdp
