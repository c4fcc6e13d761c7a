// `ingot serve MODEL`: the OpenAI server, until SIGTERM or SIGINT. Called by main.cc alone.
#pragma once

#include <string>

#include "serve/model_service.h"
#include "serve/run_server.h"

namespace ingot::apps {

struct ServeOptions {
  serve::ServiceOptions service;
  serve::ServerOptions server;
  std::string log_level = "info";
};

// The exit status. Errors go to standard error.
int run_serve(const ServeOptions& options);

}  // namespace ingot::apps
