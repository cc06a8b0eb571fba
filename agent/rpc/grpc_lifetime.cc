#include "agent/rpc/grpc_lifetime.h"

#include <grpc/grpc.h>
#include <openssl/crypto.h>

namespace fsdprun {
namespace {

// Note [OpenSSL stays]
// gRPC's threads run until the process is gone. OpenSSL frees its tables and locks in a handler of
// exit(), and a thread that is then in a handshake, or reports how one has failed, reads freed
// memory: a program whose certificate was refused died of SIGSEGV instead of saying so. What the
// process leaves behind the kernel takes back. Whoever initialises OpenSSL first decides, hence
// before main().
[[maybe_unused]] const bool keeps_openssl =
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;

}  // namespace

void BeginGrpc() {
  [[maybe_unused]] static const bool has_begun = [] {
    grpc_init();
    return true;
  }();
}

}  // namespace fsdprun
