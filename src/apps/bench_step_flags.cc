// Flags of `ingot bench step` and `ingot bench kernels`: apart from their code, since CLI11 takes ten seconds to compile.
#include <CLI/CLI.hpp>

#include "apps/bench_kernels.h"
#include "apps/bench_step.h"

namespace ingot::apps {

namespace {
void add_bench_model_flags(CLI::App* app, BenchModelOptions& o) {
  auto* model = app->add_option("model", o.model, "checkpoint folder");
  auto* spec = app->add_option("--spec", o.spec, "or glm-5.2 or tiny: random weights of its shapes");
  spec->excludes(model);
  app->add_option("--layers", o.layers, "of the spec; 0: all; else so many, of every kind")->needs(spec)->capture_default_str();
  app->add_option("--weights", o.weights, "of the spec's experts: mxfp4, fp8 or bf16")->needs(spec)->capture_default_str();
  app->add_option("--device", o.device, "cpu, cuda, hip, or auto: a GPU when there is one")->capture_default_str();
  app->add_option("--device-matmul", o.device_matmul, "on a GPU: f32, bf16 or fast")->capture_default_str();
  app->add_option("--kv-cache-dtype", o.kv_cache_dtype, "auto (bf16), bf16, fp8_e4m3, fp8_ds_mla or f32")->capture_default_str();
  app->add_flag("--no-graphs{false}", o.graphs, "launch every kernel of a GPU's step, replay nothing");
  app->add_option("--threads", o.threads, "0: one per processor")->capture_default_str();
}
}  // namespace

void add_bench_step_flags(CLI::App* app, BenchStepOptions& o) {
  add_bench_model_flags(app, o.model);
  app->add_option("--batch", o.batch, "sequences that decode together")->delimiter(',')->capture_default_str();
  app->add_option("--context", o.context, "positions that a decoded row sees")->delimiter(',')->capture_default_str();
  app->add_option("--prefill", o.prefill, "lengths of prompts")->delimiter(',')->capture_default_str();
  app->add_option("--chunk", o.chunk, "rows of a prompt's steps")->capture_default_str();
  app->add_option("--runs", o.runs, "of each")->capture_default_str();
  app->add_option("--time-limit", o.time_limit_s, "seconds of the runs of each; fewer are made when it is over")->capture_default_str();
  app->add_option("--json", o.json, "write the report here, too; -: to standard output, in place of the text");
}

void add_bench_kernels_flags(CLI::App* app, BenchKernelsOptions& o) {
  add_bench_model_flags(app, o.model);
  app->add_option("--rows", o.rows, "of a step: up to 64 as many sequences that decode, more as a prompt of one sequence")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--context", o.context, "positions that the last row of a sequence sees")->capture_default_str();
  app->add_option("--runs", o.runs, "of each step")->capture_default_str();
  app->add_option("--time-limit", o.time_limit_s, "seconds of a step's runs; fewer are made when it is over")->capture_default_str();
  app->add_option("--json", o.json, "write the report here, too; -: to standard output, in place of the text");
}

}  // namespace ingot::apps
