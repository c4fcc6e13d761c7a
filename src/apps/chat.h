// `ingot chat MODEL`: a conversation on the terminal. A line is a message; /reset forgets, /exit or end of input ends, Ctrl-C stops an
// answer. Called by main.cc alone.
#pragma once

#include <string>

#include "apps/generate.h"

namespace ingot::apps {

struct ChatOptions {
  serve::ServiceOptions service;
  SamplingFlags sampling;
  std::string system;  // system message; empty: none
  std::string log_level = "warn";
};

// The exit status. Errors go to standard error.
int run_chat(const ChatOptions& options);

}  // namespace ingot::apps
