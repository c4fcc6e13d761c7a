"""House rules a compiler does not check: clang-format, file lengths, no conflict markers. Exit status 1 names every fault."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".cc", ".cu"}
MAX_LINES = 800
MAX_KERNEL_LINES = 500


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    faults = []
    code = [f for f in files if f.suffix in CODE]
    for file in files:
        if file.suffix not in CODE | {".py", ".sh", ".cmake", ".md", ".txt"} or "golden" in file.parts or "models" in file.parts:
            continue
        lines = file.read_text().splitlines()
        limit = MAX_KERNEL_LINES if file.name.endswith(".kernel.h") else MAX_LINES
        if len(lines) > limit:
            faults.append(f"{file.relative_to(ROOT)}: {len(lines)} lines, at most {limit}")
        faults += [f"{file.relative_to(ROOT)}:{n}: conflict marker" for n, l in enumerate(lines, 1) if l.startswith(("<<<<<<< ", ">>>>>>> "))]
    style = subprocess.run(["clang-format-14", "--dry-run", "-Werror", *map(str, code)], cwd=ROOT, capture_output=True, text=True)
    if style.returncode:
        faults += sorted({line.split(": error")[0] for line in style.stderr.splitlines() if ": error" in line})[:40]
        faults.append("clang-format-14 -i would change the places above")
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(code)} source files are in order")


if __name__ == "__main__":
    main()
