#!/usr/bin/env bash
# Builds the fuzzers of tests/fuzz with clang and runs each for a while: tools/fuzz.sh [SECONDS=20] [NAME...]
# Each starts from its seeds (tests/fuzz/corpus/NAME) and from what earlier runs found (build/fuzz/corpus/NAME). One line a fuzzer; exit
# status 1 when one failed: the input is then in build/fuzz/crashes, the whole report in build/fuzz/logs/NAME.log.
# As many run at a time as there are processors.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=20
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then seconds=$1; shift; fi
all=(http_request openai_request safetensors_header tokenizer chat_template output_parser grammar scheduler_trace)
names=("$@")
if ((${#names[@]} == 0)); then names=("${all[@]}"); fi
for name in "${names[@]}"; do
  if [[ ! -f tests/fuzz/$name.cc ]]; then echo "fuzz: no fuzzer $name; there are: ${all[*]}" >&2; exit 2; fi
done

out=build/fuzz
cmake -S tests/fuzz -B $out -G Ninja -DCMAKE_CXX_COMPILER=clang++-14 >/dev/null
cmake --build $out --target "${names[@]}" -- --quiet
mkdir -p $out/crashes $out/logs

run() {
  local name=$1 log=$out/logs/$1.log flags=(-max_len=4096 -timeout=20 -rss_limit_mb=2048)
  case $name in
    # Its limits allow 8 MB alive: one allocation beyond twice that has escaped them.
    chat_template) flags+=(-malloc_limit_mb=16) ;;
    # The server's threads allocate and free while an input ends, which the check of leaks by counts takes for a leak each time; the
    # one at exit stays.
    http_request) flags+=(-detect_leaks=0) ;;
  esac
  if [[ -f tests/fuzz/dict/$name.dict ]]; then flags+=(-dict=tests/fuzz/dict/$name.dict); fi
  mkdir -p "$out/corpus/$name"
  local status=0
  UBSAN_OPTIONS=print_stacktrace=1 "$out/$name" "${flags[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="$out/crashes/$name-" "$out/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 || status=$?
  local runs rate coverage
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -c6- || true)
  printf '%-20s %9s runs %7s/s  coverage %6s  ' "$name" "${runs:-?}" "${rate:-?}" "${coverage:-?}"
  if ((status == 0)); then echo ok; return 0; fi
  # What failed, in the words of the check or the sanitizer, and the input.
  local why input
  why=$(grep -m1 -E 'check failed|ERROR: |runtime error: ' "$log" || echo "exit status $status")
  input=$(grep -o "$out/crashes/$name-[^ ]*" "$log" | tail -1 || true)
  printf 'FAILED: %s\n  input: %s   log: %s\n' "$why" "${input:-none}" "$log"
  return 1
}

# A failed run leaves a mark: bash may have forgotten the status of a job that ended long ago.
rm -f "$out"/failed.*
for name in "${names[@]}"; do
  while (($(jobs -rp | wc -l) >= $(nproc))); do sleep 0.2; done
  { run "$name" || touch "$out/failed.$name"; } &
done
wait
compgen -G "$out/failed.*" >/dev/null && exit 1
exit 0
