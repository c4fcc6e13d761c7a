// `ingot serve MODEL`: the OpenAI server, until SIGTERM or SIGINT. Called by main.cc alone.
#pragma once

#include <cstdint>
#include <string>

#include "serve/model_service.h"

namespace ingot::apps {

struct ServeOptions {
  serve::ServiceOptions service;
  std::string host = "127.0.0.1";
  int port = 30000;     // 0: any free one
  std::string api_key;  // empty: open to all
  std::string log_level = "info";
  int drain_seconds = 20;  // after SIGTERM, for answers in progress
};

// The exit status. Errors go to standard error.
int run_serve(const ServeOptions& options);

}  // namespace ingot::apps
