"""Looks at the device code of a build. Exit status 1 names every fault.

    check_device_code.py BUILD_FOLDER     e.g. build/release, after a build

1. Every architecture is there, for every src/**/*.cu (native kernels: their own). Set-up installs AMD's compiler; nvcc it cannot install: where there is none, a line says
   that no CUDA code was compiled.
2. No kernel for AMD keeps registers in memory (private_segment_fixed_size, vgpr_spill_count).
3. gfx950: what check_gfx950.py looks for, after its self-test.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CUDA_ARCHS = ("sm_90a", "sm_100a")
HIP_ARCHS = ("gfx942", "gfx950")
NATIVE_ARCHS = {"sm90": ("sm_90a",)}  # what a folder of src/kernels/native is compiled for


def spills_of(blob: pathlib.Path, readelf: str) -> list[str]:
    notes = subprocess.run([readelf, "--notes", str(blob)], capture_output=True, text=True, check=True).stdout
    faults, last, kernels = [], {}, 0
    for line in notes.splitlines():
        key, _, value = line.strip().removeprefix("- ").partition(":")
        last[key] = value.strip().strip("'")
        if key == ".vgpr_spill_count":  # keys are in the order of the alphabet: the others of this kernel have been read
            kernels += 1
            name = last[".symbol"].removesuffix(".kd")
            faults += [f"{name}: {k[1:]} is {last[k]}" for k in (".private_segment_fixed_size", ".vgpr_spill_count") if last[k] != "0"]
    return faults if kernels else ["no kernel in it"]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    readelf = shutil.which("llvm-readelf-22") or shutil.which("llvm-readelf-23")
    if readelf is None:
        sys.exit("no llvm-readelf-22: tools/setup.sh gpu")
    archs = CUDA_ARCHS + HIP_ARCHS
    if shutil.which("nvcc") is None and not pathlib.Path("/usr/local/cuda/bin/nvcc").exists():
        print("NO CUDA CODE WAS COMPILED OR CHECKED: there is no nvcc on this machine")
        archs = HIP_ARCHS
    folder = pathlib.Path(sys.argv[1]) / "device"
    faults, blobs = [], []
    for source in sorted((ROOT / "src").rglob("*.cu")):
        flat = re.sub(r"[/.]", "_", str(source.relative_to(ROOT / "src")))
        for arch in archs:
            if source.parent.parent.name == "native" and arch not in NATIVE_ARCHS[source.parent.name]:
                continue
            blob = folder / f"{flat}.{arch}"
            if not blob.is_file():
                faults.append(f"{blob}: missing; cmake says why")
                continue
            blobs.append(blob)
            if arch.startswith("gfx"):
                faults += [f"{blob.name}: {fault}" for fault in spills_of(blob, readelf)]
    gfx950 = [str(blob) for blob in blobs if blob.suffix == ".gfx950"]
    if subprocess.run([sys.executable, str(ROOT / "tools" / "check_gfx950.py"), "--self-test", *gfx950]).returncode != 0:
        faults.append("check_gfx950.py found faults")
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(blobs)} files of device code, {sum(b.stat().st_size for b in blobs) >> 10} KiB, no spills on AMD")


if __name__ == "__main__":
    main()
