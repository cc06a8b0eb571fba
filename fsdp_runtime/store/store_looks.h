#pragma once

#include <algorithm>
#include <chrono>

#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// How long a wait for other ranks goes on before a look at what has become of them.
constexpr std::chrono::milliseconds kStoreLook{500};
/// How long the store may be silent meanwhile: its process may be stopped, or the network be busy.
constexpr std::chrono::seconds kStoreSilenceMax{20};

/// What `get(until)` returns, which waits in the store until then: it is called again and again,
/// and `look(store_answers)` in between, which throws if waiting is in vain. Throws StoreTimeout at
/// the deadline, StoreSilence if the store has not answered for kStoreSilenceMax.
template <typename Get, typename Look>
auto wait_in_looks(StoreClient::TimePoint deadline, const Get& get, const Look& look) {
  StoreClient::TimePoint heard = std::chrono::steady_clock::now();
  while (true) {
    try {
      return get(std::min(deadline, std::chrono::steady_clock::now() + kStoreLook));
    } catch (const StoreSilence&) {
      look(/*store_answers=*/false);
      if (std::chrono::steady_clock::now() - heard >= kStoreSilenceMax) {
        throw;
      }
    } catch (const StoreTimeout&) {
      look(/*store_answers=*/true);
      heard = std::chrono::steady_clock::now();
      if (heard >= deadline) {
        throw;
      }
    }
  }
}

}  // namespace fsdp
