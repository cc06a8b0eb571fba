#include "formats/files/interruption.h"

#include "formats/files/output_stop.h"

namespace fsdprun {
namespace {

volatile std::sig_atomic_t interrupting_signal = 0;

extern "C" void InterruptOutputs(int signal) {
  interrupting_signal = signal;
  // SA_RESETHAND: what comes now ends the program.
  if (!StopOutputs()) {
    raise(signal);
  }
}

}  // namespace

Interruption::Interruption() {
  struct sigaction action {};
  action.sa_handler = InterruptOutputs;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) {
      sigaction(kSignals[i], &action, nullptr);
    }
  }
}

Interruption::~Interruption() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
}

bool Interruption::HasCome() { return interrupting_signal != 0; }

void Interruption::EndIfInterrupted() {
  if (interrupting_signal != 0) {
    raise(interrupting_signal);
  }
}

}  // namespace fsdprun
