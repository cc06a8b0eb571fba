#include "fsdp_runtime/shm/world.h"

#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "fsdp_runtime/shm/error.h"

namespace fsdp::shm {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

// Status that a rank publishes after its attempt to attach: kOk, or one of the others and the
// reason.
constexpr char kOk[] = "ok";
constexpr char kFailed[] = "failed: ";
constexpr char kGaveUp[] = "gave up: ";

// A rank did not arrive; shared memory itself works.
class RankMissing : public Error {
 public:
  using Error::Error;
};

// What a rank publishes about itself.
struct RankInfo {
  pid_t pid = 0;
  int arena_fd = -1;
  size_t arena_bytes = 0;
  int control_fd = -1;  // rank 0 only
  uint64_t nonce = 0;   // rank 0 only

  std::string text() const {
    std::ostringstream out;
    out << pid << ' ' << arena_fd << ' ' << arena_bytes << ' ' << control_fd << ' ' << nonce;
    return out.str();
  }
  static RankInfo parse(const std::string& text, int rank) {
    RankInfo info;
    std::istringstream in(text);
    in >> info.pid >> info.arena_fd >> info.arena_bytes >> info.control_fd >> info.nonce;
    if (text.rfind(kFailed, 0) == 0) {
      throw Error("rank " + std::to_string(rank) + " " + text);
    }
    if (in.fail() || info.pid <= 0 || info.arena_fd < 0) {
      throw Error("shared-memory group: rank " + std::to_string(rank) +
                  " published an unreadable record in the store; do all ranks run the same "
                  "version?");
    }
    return info;
  }
};

// Address space only: a page is allocated by its first write. At most the machine's memory; all
// ranks' arenas together must leave room in a 47-bit address space.
size_t arena_bytes_for(int size) {
  struct sysinfo info {};
  ::sysinfo(&info);
  const size_t physical = static_cast<size_t>(info.totalram) * info.mem_unit;
  constexpr size_t kRangeMax = size_t{16} << 40;
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = std::min(physical, kRangeMax / static_cast<size_t>(size));
  return bytes / kHugePage * kHugePage;
}

std::shared_ptr<Mapping> create_arena(int size) {
  auto arena = std::make_shared<Mapping>(Mapping::create("fsdp-arena", arena_bytes_for(size)));
  arena->advise(/*dump=*/true);
  return arena;
}

Mapping create_control(int size, uint64_t nonce) {
  Mapping control = Mapping::create("fsdp-control", control_bytes(size));
  auto* block = reinterpret_cast<Control*>(control.data());
  block->magic = kMagic;
  block->version = kLayoutVersion;
  block->world_size = static_cast<uint32_t>(size);
  block->nonce = nonce;
  return control;
}

Mapping open_control(const RankInfo& creator, int size) {
  Mapping control = Mapping::open(creator.pid, creator.control_fd, control_bytes(size));
  const auto* block = reinterpret_cast<const Control*>(control.data());
  if (block->magic != kMagic || block->version != kLayoutVersion || block->nonce != creator.nonce ||
      block->world_size != static_cast<uint32_t>(size)) {
    throw Error(
        "shared-memory group: the control block of rank 0 is not the one it announced (another "
        "version, or a stale record of an earlier run in the store)");
  }
  return control;
}

Fd open_pidfd(pid_t pid) {
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) {
    throw Error("shared-memory group: watching process " + std::to_string(pid) +
                " with pidfd_open: " + std::strerror(errno));
  }
  return fd;
}

std::string rank_key(const char* what, int rank) {
  return std::string("shm/") + what + "/" + std::to_string(rank);
}

std::string get_from(Exchange& exchange, const char* what, int rank, Deadline deadline) {
  try {
    return exchange.get(rank_key(what, rank), deadline);
  } catch (const std::exception& error) {
    throw RankMissing("shared-memory group: rank " + std::to_string(rank) + " has not arrived (" +
                      error.what() + ")");
  }
}

void open_peers(World& world, Exchange& exchange, Deadline deadline) {
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer == world.rank) {
      world.pidfds.emplace_back();
      continue;
    }
    const RankInfo info = RankInfo::parse(get_from(exchange, "info", peer, deadline), peer);
    world.pidfds.push_back(open_pidfd(info.pid));
    auto arena =
        std::make_shared<Mapping>(Mapping::open(info.pid, info.arena_fd, info.arena_bytes));
    arena->advise(/*dump=*/false);
    world.arenas[peer] = std::move(arena);
    if (peer == 0) {
      world.control = open_control(info, world.size);
    }
  }
}

// Reads the status of every rank, so that all ranks succeed or fail together.
void check_all_attached(Exchange& exchange, const World& world, Deadline deadline) {
  for (int peer = 0; peer < world.size; ++peer) {
    const std::string status = get_from(exchange, "status", peer, deadline);
    if (status == kOk) {
      continue;
    }
    const std::string reason = "shared-memory group: rank " + std::to_string(peer) + " " + status;
    if (status.rfind(kFailed, 0) == 0) {
      throw Unavailable(reason);
    }
    throw Error(reason);
  }
}

std::string read_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string read_link(const char* path) {
  char target[PATH_MAX];
  const ssize_t length = ::readlink(path, target, sizeof(target));
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : std::string();
}

}  // namespace

char* World::staging(int lane, int rank_of_ring) const {
  const auto ring = static_cast<size_t>(rank_of_ring) * kLanes + static_cast<size_t>(lane);
  return control.data() + staging_offset() + ring * staging_ring_bytes();
}

std::string host_identity() {
  return read_line("/proc/sys/kernel/random/boot_id") + " " + read_link("/proc/self/ns/pid") +
         " uid " + std::to_string(::geteuid());
}

std::shared_ptr<World> attach(Exchange& exchange, int rank, int size,
                              std::chrono::milliseconds timeout) {
  if (size < 1 || size > kRanksMax || rank < 0 || rank >= size) {
    throw Unavailable("shared-memory group: rank " + std::to_string(rank) + " of " +
                      std::to_string(size) + "; at most " + std::to_string(kRanksMax) +
                      " ranks of one host are supported");
  }
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  auto world = std::make_shared<World>();
  world->size = size;
  world->rank = rank;
  world->arenas.resize(static_cast<size_t>(size));
  bool is_info_published = false;
  try {
    RankInfo info;
    info.pid = ::getpid();
    world->arenas[rank] = create_arena(size);
    info.arena_fd = world->arenas[rank]->fd();
    info.arena_bytes = world->arenas[rank]->bytes();
    if (rank == 0) {
      info.nonce = std::random_device{}() | (uint64_t{std::random_device{}()} << 32);
      world->control = create_control(size, info.nonce);
      info.control_fd = world->control.fd();
    }
    exchange.put(rank_key("info", rank), info.text());
    is_info_published = true;
    open_peers(*world, exchange, deadline);
    exchange.put(rank_key("status", rank), kOk);
  } catch (const RankMissing& error) {
    exchange.put(rank_key("status", rank), std::string(kGaveUp) + error.what());
    throw;
  } catch (const std::exception& error) {
    const std::string status = std::string(kFailed) + error.what();
    if (!is_info_published) {
      exchange.put(rank_key("info", rank), status);
    }
    exchange.put(rank_key("status", rank), status);
    throw Unavailable(error.what());
  }
  check_all_attached(exchange, *world, deadline);
  // All ranks have mapped it. The arenas' descriptors stay: windows map parts of them.
  world->control.close_fd();
  return world;
}

std::shared_ptr<World> make_thread_world(int size) {
  if (size < 1 || size > kRanksMax) {
    throw Error("thread world of " + std::to_string(size) + " ranks; 1 to " +
                std::to_string(kRanksMax) + " expected");
  }
  auto world = std::make_shared<World>();
  world->size = size;
  world->control = create_control(size, 0);
  for (int rank = 0; rank < size; ++rank) {
    world->arenas.push_back(create_arena(size));
  }
  return world;
}

}  // namespace fsdp::shm
