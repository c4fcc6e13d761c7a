#include "apps/service_flags.h"

#include <CLI/CLI.hpp>

namespace ingot::apps {

void add_speculation_flags(CLI::App* app, serve::SpeculationOptions& o) {
  app->add_option("--speculative-algorithm", o.algorithm, "NEXTN or none; default: NEXTN when the checkpoint has an MTP layer");
  app->add_option("--speculative-num-steps", o.num_steps, "tokens drafted in a row, 1 to 8; default: 5");
  app->add_option("--speculative-eagle-topk", o.eagle_topk, "drafts of one parent (only 1 so far)")->capture_default_str();
  app->add_option("--speculative-num-draft-tokens", o.num_draft_tokens, "rows of a verification; default: num-steps + 1");
  app->add_flag("--speculative-adaptive", o.adaptive, "draft as deep as it pays, by acceptance and batch size");
  app->add_flag("--speculative-use-rejection-sampling", o.use_rejection_sampling,
                "draw the drafts of sampled requests that have no seed, and accept them with min(1, p / q)");
  app->add_option("--speculative-force-acceptance", o.force_acceptance,
                  "accept so many tokens a step in the mean, whatever the model says; needs --benchmark-mode");
  app->add_flag("--benchmark-mode", o.benchmark_mode, "allow flags that make answers meaningless");
}

void add_model_flags(CLI::App* app, serve::ServiceOptions& o) {
  app->add_option("model", o.model, "checkpoint folder")->required();
  app->add_option("--device", o.device, "cpu, cuda, hip, or auto: a GPU when there is one")->capture_default_str();
  app->add_option("--device-matmul", o.device_matmul,
                  "on a GPU: f32; bf16: activations rounded, on matrix instructions; fast: and by native kernels, where it has them")
      ->capture_default_str();
  app->add_option("--kv-cache-dtype", o.kv_cache_dtype, "auto (bf16), bf16, fp8_e4m3, fp8_ds_mla or f32")->capture_default_str();
  app->add_option("--context-length", o.context_length, "prompt + answer of one request, in tokens; 0: the model's")->capture_default_str();
  app->add_option("--max-total-tokens", o.max_total_tokens, "tokens the KV cache holds; 0: from context length and free memory")
      ->capture_default_str();
  app->add_option("--mem-fraction-static", o.mem_fraction_static,
                  "of the memory that the model leaves, for the KV cache; 0: 0.5 of the host's, 0.9 of a GPU's")
      ->capture_default_str();
  app->add_option("--page-size", o.page_size, "tokens a cache page")->capture_default_str();
  app->add_option("--chunked-prefill-size", o.chunked_prefill_size, "token budget of a step")->capture_default_str();
  app->add_option("--threads", o.threads, "kernel threads; 0: one per processor")->capture_default_str();
  add_speculation_flags(app, o.speculation);
}

void add_serve_flags(CLI::App* app, ServeOptions& serve) {
  serve::ServiceOptions& service = serve.service;
  add_model_flags(app, service);
  service.log_requests = true;
  app->add_option("--host", serve.server.host, "address to listen on, or unix:PATH")->capture_default_str();
  app->add_option("--port", serve.server.port, "0: any free one")->capture_default_str();
  app->add_option("--served-model-name", service.served_model_name, "default: the folder's name");
  app->add_option("--api-key", serve.server.api_key, "asked of clients as a Bearer token; default: none");
  app->add_option("--api-key-file", serve.server.api_key_file, "a file whose first line is the key");
  app->add_option("--uds", serve.server.uds, "path of a unix socket to listen on, instead of host and port");
  app->add_option("--ssl-certfile", serve.server.ssl_certfile, "TLS: the certificate and its chain, PEM");
  app->add_option("--ssl-keyfile", serve.server.ssl_keyfile, "TLS: the private key, PEM; default: in the certificate's file");
  app->add_option("--ssl-keyfile-password", serve.server.ssl_keyfile_password, "TLS: of an encrypted key");
  app->add_option("--cors-allow-origins,--allowed-origins", serve.server.cors_allow_origins,
                  R"(pages that may ask from a browser: "*", origins with commas between them, or a JSON list; default: none)");
  app->add_flag("!--disable-access-log", serve.server.access_log, "no line a request in the log");
  app->add_option("--response-store", serve.server.response_store,
                  "where /v1/responses are kept: memory, none, or an SQLite file, which survives a restart")
      ->capture_default_str();
  app->add_option("--response-store-max", serve.server.response_store_max, "responses kept there; those used least recently go first")
      ->capture_default_str();
  app->add_option("--max-connections", serve.server.max_connections, "more are answered 503")->capture_default_str();
  app->add_option("--max-running-requests", service.max_running_requests, "sequences in a batch")->capture_default_str();
  app->add_option("--max-queued-requests", service.max_queued_requests, "more are answered 429")->capture_default_str();
  app->add_option("--queue-timeout", service.queue_timeout, "seconds a request may wait for its turn; 0: for ever")->capture_default_str();
  app->add_option("--request-timeout", service.request_timeout, "seconds a request may take in all; 0: for ever")->capture_default_str();
  app->add_option("--schedule-policy", service.schedule_policy, "fcfs, or lpm: longest cached prefix first")->capture_default_str();
  app->add_flag("--disable-radix-cache", service.disable_radix_cache, "compute every prompt anew");
  app->add_option("--hicache-size", service.hicache_size, "GB of host memory for cached prefixes")->capture_default_str();
  app->add_option("--hicache-dir", service.hicache_dir, "folder where cached prefixes survive a restart");
  app->add_option("--hicache-dir-size", service.hicache_dir_size, "GB of disk there")->capture_default_str();
  app->add_option("--tp", service.tp, "tensor-parallel ranks (only 1 so far)")->capture_default_str();
  app->add_option("--dp", service.dp, "replicas of the engine")->capture_default_str();
  app->add_option("--drain-timeout", serve.server.drain_timeout, "seconds for running answers after SIGTERM")->capture_default_str();
  app->add_option("--watchdog-timeout", service.watchdog_timeout, "seconds of engine silence until /health says 503")
      ->capture_default_str();
  app->add_option("--request-log", service.request_log, "a JSON line a request to this file; default: to the log");
  app->add_option(
      "--kv-events-config", service.kv_events,
      R"(publish what the prefix cache does, as vLLM: {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "...", "topic": "..."})");
  app->add_option("--default-chat-template-kwargs", service.default_chat_template_kwargs,
                  R"(JSON, for requests that say nothing else: {"enable_thinking": false} or {"reasoning_effort": "high"})");
  app->add_option("--trace-dir", service.trace_dir, "Chrome traces of the steps, for Perfetto");
  app->add_option("--log-level", serve.log_level, "debug, info, warn, error or off")->capture_default_str();
}

}  // namespace ingot::apps
