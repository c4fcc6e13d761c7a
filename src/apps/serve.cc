#include "apps/serve.h"

#include <cstdio>

#include "base/log.h"

namespace ingot::apps {

namespace {
int complain(const std::string& message) {
  std::fprintf(stderr, "ingot serve: %s\n", message.c_str());
  return 1;
}
}  // namespace

int run_serve(const ServeOptions& options) {
  if (!init_log(options.log_level))
    return complain(fmt::format("--log-level {} is unknown: use trace, debug, info, warn, error or off", options.log_level));
  if (const auto good = serve::check_server_options(options.server); !good) return complain(good.error().text());
  serve::block_signals();
  auto loaded = [&] {
    const serve::StopWhileLoading stop;
    return serve::load_service(options.service);
  }();
  if (!loaded) return complain(loaded.error().text());
  const auto served = serve::serve_until_signal(*loaded, options.server);
  return served ? 0 : complain(served.error().text());
}

}  // namespace ingot::apps
