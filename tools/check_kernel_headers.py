"""Keeps kernels free of vendors. Exit status 1 names every fault.

1. A *.kernel.h has no preprocessor line but `#pragma once` and `#include`, and includes only rooms of this repository.
2. No vendor's name (of a language, a compiler macro, a builtin, a header) stands in code outside src/gpu and src/kernels/native,
   nor in a *.kernel.h anywhere. Comments and string literals may speak of vendors: a program must be able to say which GPU it found.

`--self-test` plants each fault in text, and a vendor's header in a copy of the kernels, and checks that they are found.
"""

import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".cc", ".cu", ".hip"}
ROOMS_OF_VENDORS = ("src/gpu/", "src/kernels/native/")

VENDOR = re.compile(
    r"""\b(?:__)?(?:cuda|hip|nccl|rccl|cublas\w*|cudnn|cutlass|rocm|nvcc|hipcc|nvidia|ptx)(?:_\w+|[A-Z]\w*|__)?\b
      | \b__CUDA\w*\b | \b__HIP\w*\b | \bCUDA_\w+\b | \bHIP_\w+\b
      | \bcu(?:Init|Ctx|Module|Launch|Mem|Stream|Event|Graph|Device)\w*\b
      | \b__nv\w*\b | \bamdgcn\w*\b | \b__builtin_amdgcn\w*\b | \b__gfx\d\w*\b
      | \b__(?:shfl|ballot|syncwarp|syncthreads|activemask|any_sync|all_sync|match)\w*\b
      | \b\w*(?:wmma|wgmma|mfma|tcgen05)\w*\b
      | \bwarpSize\b | \b(?:threadIdx|blockIdx|blockDim|gridDim)\b
      | \b__(?:global|device|host|shared|constant|forceinline|launch_bounds)__\b""",
    re.VERBOSE,
)
INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"][^>\"]+[>\"])")
VENDOR_HEADER = re.compile(r"cuda|hip/|\bhip_|nccl|rccl|cublas|cudnn|rocm|cub/|mma\.hpp|nvml|rocblas", re.IGNORECASE)
ALLOWED_LINE = re.compile(r"^\s*#\s*(pragma\s+once|include\b)")


def without_comments_and_strings(text: str) -> str:
    """The code alone; every line keeps its number. Include paths are kept: they are looked at apart."""
    pattern = re.compile(
        r"""(?P<keep>^[ \t]*\#[ \t]*include[^\n]*) | //[^\n]* | /\*.*?\*/ | R"(?P<d>[^(\s]{0,16})\(.*?\)(?P=d)"
          | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+'""",
        re.VERBOSE | re.DOTALL | re.MULTILINE,
    )

    def blank(match: re.Match) -> str:
        if match.group("keep"):
            return match.group("keep").split("//")[0]
        return '""' + "\n" * match.group().count("\n")

    # An apostrophe between digits is a separator, not a character.
    return pattern.sub(blank, re.sub(r"(?<=\d)'(?=\d)", "", text))


def waits(text: str) -> bool:
    return "start_after_previous()" in text or "wait_for_previous_kernel()" in text


def early_start_faults(name: str, text: str, folder: pathlib.Path) -> list[str]:
    """Kernels are set up while the one before them still runs. One that does not wait for it reads what is not there yet (seen as an illegal
    address in a kernel far behind): a native file of kernels waits itself, or includes a file of its folder that does."""
    text = without_comments_and_strings(text)
    if "native/sm90/" not in name or "__global__" not in text or waits(text):
        return []
    included = [folder / pathlib.Path(i.strip('"')).name for i in re.findall(r'#include ("kernels/native/sm90/[^"]+")', text)]
    others = [f for f in included if f.name != "ptx.h" and f.is_file()]  # ptx.h has the instructions themselves
    if any(waits(without_comments_and_strings(f.read_text())) for f in others):
        return []
    return [f"{name}: kernels that do not wait for the one before them: start_after_previous() comes first"]


def faults_of(name: str, text: str) -> list[str]:
    faults = []
    kernel = name.endswith(".kernel.h")
    for number, line in enumerate(without_comments_and_strings(text).splitlines(), 1):
        where = f"{name}:{number}"
        include = INCLUDE.match(line)
        if kernel and line.lstrip().startswith("#") and not ALLOWED_LINE.match(line):
            faults.append(f"{where}: a kernel has no preprocessor line: {line.strip()}")
        if kernel and include and include.group(1).startswith("<"):
            faults.append(f"{where}: a kernel includes this repository's headers alone, not {include.group(1)}")
        if not kernel and name.startswith(ROOMS_OF_VENDORS):
            continue
        if include:
            if VENDOR_HEADER.search(include.group(1)):
                faults.append(f"{where}: vendor header {include.group(1)}; only src/gpu and src/kernels/native may include it")
        elif found := VENDOR.search(line):
            faults.append(f"{where}: vendor name {found.group().strip()}; say it in src/gpu/kernel.h with a name of ours")
    return faults


def self_test() -> None:
    good = '#pragma once\n// CUDA and HIP\n#include "gpu/kernel.h"\nint ship = 1\'000; const char* s = "cudaMalloc __HIP__"; /* warpSize */ chip hipster;\n'
    assert not faults_of("src/kernels/x.kernel.h", good), faults_of("src/kernels/x.kernel.h", good)
    for bad in (
        "#if defined(X)\n", "#pragma unroll\n", "#define A 1\n", "#include <cmath>\n", '#include "cuda_runtime.h"\n', "int n = warpSize;\n",
        "v = __shfl_xor_sync(m, v, 1);\n", "__device__ void f();\n", "hipMalloc(p);\n", "cudaFree(p);\n", "x = __builtin_amdgcn_rsqf(x);\n",
        "int i = threadIdx.x;\n", "#include <cuda_bf16.h>\n", "wmma::fragment<> f;\n", "v = __builtin_mfma(a);\n", "/* a */ cuLaunchKernel(f);\n", "__syncthreads();\n",
    ):
        assert len(faults_of("src/kernels/x.kernel.h", "#pragma once\n" + bad)) >= 1, bad
        assert faults_of("src/kernels/x.kernel.h", "#pragma once\n" + bad)[0].startswith("src/kernels/x.kernel.h:2:"), bad
    for bad in ("#include <cuda_runtime.h>\n", "#include <hip/hip_runtime.h>\n", "cudaStream_t s;\n", "#if defined(__CUDACC__)\n"):
        assert faults_of("src/model/x.cc", bad), bad
        assert not faults_of("src/gpu/x.cc", bad), bad
        assert not faults_of("src/kernels/native/sm90/x.cu", bad), bad


def faults_in(root: pathlib.Path) -> tuple[list[str], int, int]:
    """The faults under `root`, the number of files looked at, and how many of them are kernel headers."""
    files = sorted(f for folder in ("src", "tests") for f in (root / folder).rglob("*") if f.suffix in CODE and f.is_file())
    faults = [fault for f in files for fault in faults_of(str(f.relative_to(root)), f.read_text())]
    kernels = sorted((root / "src" / "kernels" / "native").rglob("*.cu"))
    faults += [fault for f in kernels for fault in early_start_faults(str(f.relative_to(root)), f.read_text(), f.parent)]
    return faults, len(files), sum(f.name.endswith(".kernel.h") for f in files)


def self_test_in_a_copy() -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        shutil.copytree(ROOT / "src" / "kernels", copy / "src" / "kernels")
        before = faults_in(copy)[0]
        victim = copy / "src" / "kernels" / "rms_norm.kernel.h"
        victim.write_text(victim.read_text().replace("#pragma once\n", "#pragma once\n#include <cuda_bf16.h>\n"))
        native = copy / "src" / "kernels" / "native" / "sm90" / "route.cu"
        native.write_text(native.read_text().replace("start_after_previous();", ""))
        found = [fault for fault in faults_in(copy)[0] if fault not in before]
        assert any("route.cu" in f and "wait" in f for f in found), found
        assert any("rms_norm.kernel.h" in f and "<cuda_bf16.h>" in f for f in found), found
        print("planted #include <cuda_bf16.h> in a copy of rms_norm.kernel.h, and took the wait out of route.cu:", *found, sep="\n  ")


def main() -> None:
    self_test()
    if "--self-test" in sys.argv[1:]:
        self_test_in_a_copy()
        print("every planted fault was found")
        return
    faults, files, kernels = faults_in(ROOT)
    if faults:
        sys.exit("\n".join(faults))
    if kernels == 0:
        sys.exit("no *.kernel.h found: looked in src and tests of " + str(ROOT))
    print(f"{kernels} kernel headers among {files} files: no vendor's name where it must not stand")


if __name__ == "__main__":
    main()
