#!/usr/bin/env bash
# Installs what Ingot needs on Debian 12 and is not there yet. Called by ./demo and ./check; safe to run again, and silent
# (no network) when nothing is missing. `tools/setup.sh gpu` also installs the compiler of AMD's device code, without which the program
# runs on the CPU and on NVIDIA's GPUs alone (theirs needs nvcc 13.0 from NVIDIA in /usr/local/cuda or PATH; cmake says what it found).
# `tools/setup.sh tests` does that, installs the tools of ./check and makes .venv with the Python packages of the tests, and
# .deps/load_client with the load client among them.
set -euo pipefail
cd "$(dirname "$0")/.."

# What each one is for: docs/dependencies.md.
packages=(g++ cmake ninja-build ccache mold pkg-config python3 curl ca-certificates
  libboost1.81-dev libssl-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libexpected-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev prometheus-cpp-dev libzmq3-dev cppzmq-dev libsqlite3-dev libtomlplusplus-dev libgtest-dev libgmock-dev libbenchmark-dev)
if [[ "${1:-}" == tests || "${1:-}" == gpu ]]; then packages+=(clang-22 lld-22 llvm-22); fi
if [[ "${1:-}" == tests ]]; then packages+=(python3-venv clang-format-14 clang-tidy-14 clang-14 libclang-rt-14-dev); fi

missing=()
for package in "${packages[@]}"; do
  if ! dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then missing+=("$package"); fi
done
if ((${#missing[@]})); then
  sudo=""
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || { echo "setup: run as root, or install sudo, to install: ${missing[*]}" >&2; exit 1; }
    sudo=sudo
  fi
  echo "setup: installing ${missing[*]}" >&2
  log=$(mktemp)
  if ! { $sudo apt-get update && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "setup: apt-get failed (whole log: $log)" >&2
    exit 1
  fi
fi

tools/setup_xgrammar.sh

# A venv is made anew when its requirements change.
make_venv() {  # folder, requirements, further flags of pip
  cmp -s "$2" "$1/requirements.stamp" && return
  echo "setup: Python packages of $2" >&2
  rm -rf "$1"
  /usr/bin/python3 -m venv "$1"
  "$1/bin/pip" install --quiet --disable-pip-version-check -r "$2" "${@:3}"
  cp "$2" "$1/requirements.stamp"
}

if [[ "${1:-}" == tests ]]; then
  make_venv .venv tests/e2e/requirements.txt
  # One of its packages, crick, has wheels for x86-64 alone. Byte code is written for what is imported, a small part, when it is.
  if [[ $(uname -m) == x86_64 ]]; then make_venv .deps/load_client tests/e2e/load_client_requirements.txt --no-deps --no-compile; fi
fi
