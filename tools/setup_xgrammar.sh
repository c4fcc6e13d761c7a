#!/usr/bin/env bash
# Fetches XGrammar's sources (the sdist on PyPI, pinned by its hash) and builds them into .deps/xgrammar-VERSION, once a checkout: the
# masks of structured output. Every CMake preset links that one library. Called by tools/setup.sh; silent when it is there already.
# From the mirror that pip is configured with, if any, else from PyPI. Without a network: put the sdist into .deps/ by hand.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.2.9
sdist=xgrammar-$version.tar.gz
sha256=87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90
url=https://files.pythonhosted.org/packages/3a/2f/5bf8e8fa6619cff534932f79b0abc81a417d354bc5093252c1a6081d0a93/$sdist
prefix=.deps/xgrammar-$version

mkdir -p .deps
exec 9>.deps/lock
flock 9  # two builds may start at once in a checkout
want=$(sha256sum tools/setup_xgrammar.sh cmake/xgrammar/*)
[[ -f $prefix/lib/libxgrammar.a && "$(cat $prefix/stamp 2>/dev/null)" == "$want" ]] && exit 0

is_right() { [[ -f $1 ]] && echo "$sha256  $1" | sha256sum --check --status; }

# The index that pip would ask, when somebody configured one; empty otherwise.
configured_index() {
  /usr/bin/python3 - <<'PYTHON'
import configparser, os
home = os.path.expanduser("~")
files = ["/etc/pip.conf", home + "/.pip/pip.conf", os.environ.get("XDG_CONFIG_HOME", home + "/.config") + "/pip/pip.conf",
         os.environ.get("PIP_CONFIG_FILE", "")]
config = configparser.RawConfigParser()
config.read(file for file in files if file)
print(os.environ.get("PIP_INDEX_URL") or config.get("global", "index-url", fallback=""))
PYTHON
}

# Where a package index (PEP 503) keeps the sdist.
link_in_index() {
  curl -fsSL --retry 2 --connect-timeout 20 "${1%/}/xgrammar/" | /usr/bin/python3 -c '
import html.parser, sys, urllib.parse
page, name = sys.argv[1:]
class Links(html.parser.HTMLParser):
    def handle_starttag(self, tag, attributes):
        link = dict(attributes).get("href") or ""
        if tag == "a" and urllib.parse.urlparse(link).path.endswith("/" + name):
            print(urllib.parse.urljoin(page, link).split("#")[0])
Links().feed(sys.stdin.read())' "${1%/}/xgrammar/" "$sdist" | head -1
}

if ! is_right .deps/$sdist; then
  index=$(configured_index)
  if [[ -n $index ]]; then
    found=$(link_in_index "$index" || true)
    if [[ -n $found ]]; then url=$found; else echo "setup: $index, the index that pip is configured with, has no $sdist; trying PyPI" >&2; fi
  fi
  echo "setup: fetching $url" >&2
  if ! curl -fsSL --retry 2 --connect-timeout 20 -o .deps/download "$url"; then
    echo "setup: $url cannot be fetched. Without a network: bring it here as $PWD/.deps/$sdist and start again" >&2
    exit 1
  fi
  if ! is_right .deps/download; then
    echo "setup: what came from $url is not the pinned file: sha256 $(sha256sum <.deps/download | cut -d' ' -f1), wanted $sha256" >&2
    rm -f .deps/download
    exit 1
  fi
  mv .deps/download .deps/$sdist
fi

echo "setup: building XGrammar $version (once; 2 to 3 minutes on 2 cores)" >&2
build=.deps/build
rm -rf $build "$prefix"
mkdir -p $build
tar -xzf .deps/$sdist -C $build "xgrammar-$version"/{cpp,include,LICENSE,NOTICE,3rdparty/picojson,3rdparty/dlpack}
if ! { cmake -S cmake/xgrammar -B $build/objects -G Ninja -DCMAKE_BUILD_TYPE=Release "-DXGRAMMAR_SOURCE=$PWD/$build/xgrammar-$version" \
         "-DCMAKE_INSTALL_PREFIX=$PWD/$prefix" && cmake --build $build/objects --target install; } >.deps/build.log 2>&1; then
  tail -20 .deps/build.log >&2
  echo "setup: XGrammar did not build (whole log: $PWD/.deps/build.log)" >&2
  exit 1
fi
rm -rf $build
echo "$want" >"$prefix/stamp"
