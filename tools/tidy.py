"""Runs clang-tidy-14 over every source file of the release build, one a processor. A file is skipped when it, every header of the
project, the flags and the configuration are as they were when it last passed here (stamps in the user's cache folder, as ccache does).
Exit status 1 on any finding."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
STAMPS = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ingot-tidy"
# clang reads g++'s flags: two it does not know, and one of its own warnings that the templates of the native kernels set off for nothing.
EXTRA = ["--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-for-loop-analysis"]


def digest(*parts: bytes) -> str:
    h = hashlib.sha256()
    for part in parts:
        h.update(len(part).to_bytes(8, "little") + part)
    return h.hexdigest()


def main() -> None:
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    sources = sorted({c["file"] for c in commands if c["file"].startswith(str(ROOT / "src")) and not c["file"].endswith("_test.cc")})
    common = digest((ROOT / ".clang-tidy").read_bytes(), (ROOT / "cmake" / "toolchain.cmake").read_bytes(),
                    *(h.read_bytes() for h in sorted((ROOT / "src").rglob("*.h"))))
    STAMPS.mkdir(parents=True, exist_ok=True)
    todo = []
    for source in sources:
        stamp = STAMPS / digest(common.encode(), source.removeprefix(str(ROOT)).encode(), pathlib.Path(source).read_bytes())
        if not stamp.exists():
            todo.append((source, stamp))

    def tidy(job):
        source, stamp = job
        result = subprocess.run(["clang-tidy-14", "-p", str(BUILD), "--quiet", *EXTRA, source], capture_output=True, text=True)
        if result.returncode == 0:
            stamp.touch()
        return source, result

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, result in pool.map(tidy, todo):
            if result.returncode != 0:
                failed += 1
                print(result.stdout.strip() or result.stderr.strip())
    print(f"clang-tidy: {len(todo)} files looked at, {len(sources) - len(todo)} unchanged, {failed} with findings")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
