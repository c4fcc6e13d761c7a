// Flags of the service, declared once: for `ingot serve`, `generate` and `chat`, and for the tests' scripted server.
// Names follow sglang. Values are checked where they are used, by name.
#pragma once

#include "apps/serve.h"

namespace CLI {
class App;
}

namespace ingot::apps {

// Those of speculation.
void add_speculation_flags(CLI::App* app, serve::SpeculationOptions& options);
// Checkpoint, cache, threads and speculation.
void add_model_flags(CLI::App* app, serve::ServiceOptions& options);
// Those and everything else that `ingot serve` takes.
void add_serve_flags(CLI::App* app, ServeOptions& serve);

}  // namespace ingot::apps
