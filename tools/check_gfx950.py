#!/usr/bin/env python3
"""Finds the known miscompile of gfx950 code: clang 22.1.8 moves a scaled MFMA below a divergent branch (LLVM pull request 178627), where
only some lanes issue it, although it needs all 64. We compile with `-mllvm -disable-machine-sink`, which prevents it; this looks at what came out.

    tools/check_gfx950.py FILE...              code objects of gfx950 (or disassembly, *.s and *.txt); 1 when a scaled MFMA can run with lanes off
    tools/check_gfx950.py --self-test          on stored disassembly, and on a kernel compiled with and without the flag where clang-22 is there

The execution mask is followed along all ways through each function: an instruction that narrows it is remembered by the register that
keeps the old mask, until that register is put back. A kernel that multiplies inside a divergent branch on purpose is as wrong and is reported alike.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FUNCTION = re.compile(r"^(?:[0-9a-f]+ )?<(.+)>:$")
INSTRUCTION = re.compile(r"^\s+([a-z]\w*)(?:\s+(.*?))?\s*//\s*([0-9A-Fa-f]+):((?:\s+[0-9A-Fa-f]{8})*)")
TARGET = re.compile(r"<(.+?)(?:\+0x([0-9a-f]+))?>\s*$")
SCALED = "v_mfma_scale"
UNKNOWN = "?"  # a mask narrowed without keeping the old one: until all lanes are set


def functions(disassembly: str):
    """(name, [(address, operation, operands, address of the branch target or None)])"""
    name, start, found = None, 0, []
    for line in disassembly.splitlines():
        if match := FUNCTION.match(line.strip()):
            if name is not None:
                yield name, found
            name, start, found = match.group(1), None, []
        elif name is not None and (match := INSTRUCTION.match(line)):
            address = int(match.group(3), 16)
            start = address if start is None else start
            target = TARGET.search(line) if match.group(1).startswith(("s_cbranch", "s_branch")) else None
            found.append(
                (address, match.group(1), (match.group(2) or "").strip(), start + int(target.group(2) or "0", 16) if target else None)
            )
    if name is not None:
        yield name, found


def after(operation: str, operands: str, pending: frozenset) -> frozenset:
    """The registers whose masks wait to be put back, after one instruction."""
    parts = [part.strip() for part in operands.split(",")] if operands else []
    if operation.startswith("v_cmpx"):
        return pending | {UNKNOWN}
    if match := re.match(r"s_(and|or|xor|andn2|orn2|nand|nor|xnor|andn1|orn1)_saveexec_b64|s_andn[12]_wrexec_b64", operation):
        return pending if match.group(1) == "or" else pending | {parts[0]}
    if not parts or parts[0] != "exec":
        if operation == "s_mov_b64" and len(parts) == 2 and parts[1] in pending:
            return pending | {parts[0]}
        return pending
    if operation == "s_mov_b64":
        return frozenset() if parts[1] == "-1" else pending - {parts[1]} if parts[1] in pending else pending | {UNKNOWN}
    if operation == "s_or_b64":
        return pending - {part for part in parts[1:]}
    return pending | {next((part for part in parts[1:] if part != "exec"), UNKNOWN)}  # s_and, s_andn2, s_xor: narrower or the other side


def complaints(disassembly: str):
    """(number of scaled MFMAs, [what is wrong])"""
    total, wrong = 0, []
    found = list(functions(disassembly))
    if not any(code for _, code in found):
        wrong.append("no function to read: not a code object of gfx950?")
    for name, code in found:
        total += sum(operation.startswith(SCALED) for _, operation, _, _ in code)
        if not any(operation.startswith(SCALED) for _, operation, _, _ in code):
            continue
        place = {address: i for i, (address, _, _, _) in enumerate(code)}
        entering = {0: frozenset()}  # instruction -> pending masks of any way there
        todo = [0]
        while todo:
            i = todo.pop()
            _, operation, operands, target = code[i]
            leaving = after(operation, operands, entering[i])
            ways = [] if operation in ("s_endpgm", "s_branch", "s_setpc_b64") else [i + 1]
            if target is not None:
                if target not in place:
                    wrong.append(f"{name}: a branch to {target:#x}, which is no instruction of it")
                    continue
                ways.append(place[target])
            for way in ways:
                known = entering.get(way)
                if way < len(code) and (known is None or not leaving <= known):
                    entering[way] = leaving | (known or frozenset())
                    todo.append(way)
        for i, (address, operation, _, _) in enumerate(code):
            if operation.startswith(SCALED) and entering.get(i):
                wrong.append(f"{name}: {operation} at {address:#x} with lanes off (masks kept in {', '.join(sorted(entering[i]))})")
    return total, wrong


def disassemble(file: pathlib.Path, objdump: str) -> str:
    if file.suffix in (".s", ".txt"):
        return file.read_text()
    return subprocess.run([objdump, "-d", "--mcpu=gfx950", str(file)], check=True, capture_output=True, text=True).stdout


GOOD = """
0000000000001600 <kept_outside>:
	v_cmp_gt_i32_e32 vcc, s2, v5                               // 000000001600: 7D880A02
	v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[6:9], v[10:13], 0, v0, v1 op_sel_hi:[0,0,0] cbsz:4 blgp:4// 000000001604: D3AC0000 00020300 D3AD0C00 82021506
	s_and_saveexec_b64 s[0:1], vcc                             // 000000001614: BE80206A
	s_cbranch_execz 2                                          // 000000001618: BF880002 <kept_outside+0x24>
	global_store_dwordx4 v4, v[0:3], s[4:5]                    // 00000000161C: DC7C8000 00040004
	s_endpgm                                                   // 000000001624: BF810000

0000000000001700 <loop_after_a_divergent_part>:
	s_and_saveexec_b64 s[0:1], vcc                             // 000000001700: BE80206A
	s_cbranch_execz 1                                          // 000000001704: BF880001 <loop_after_a_divergent_part+0xc>
	v_mov_b32_e32 v1, v2                                       // 000000001708: 7E020302
	s_or_b64 exec, exec, s[0:1]                                // 00000000170C: 87FE007E
	v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[6:9], v[10:13], v[0:3], v0, v1 op_sel_hi:[0,0,0] cbsz:4 blgp:4// 000000001710: D3AC0000 00020300 D3AD0C00 84021506
	s_cbranch_scc1 65533                                       // 000000001720: BF85FFFB <loop_after_a_divergent_part+0x10>
	s_endpgm                                                   // 000000001724: BF810000
"""
BAD = """
0000000000001600 <sunk>:
	s_and_saveexec_b64 s[0:1], vcc                             // 000000001600: BE80206A
	s_cbranch_execz 6                                          // 000000001604: BF880006 <sunk+0x20>
	v_mfma_scale_f32_16x16x128_f8f6f4 v[2:5], v[4:7], v[8:11], 0, v1, v2 op_sel_hi:[0,0,0] cbsz:4 blgp:4// 000000001608: D3AC0000 00020501 D3AD0C02 82021104
	global_store_dwordx4 v0, v[2:5], s[4:5]                    // 000000001618: DC7C8000 00040200
	s_endpgm                                                   // 000000001620: BF810000

0000000000001700 <other_side>:
	s_and_saveexec_b64 s[0:1], vcc                             // 000000001700: BE80206A
	s_xor_b64 s[0:1], exec, s[0:1]                             // 000000001704: 8880007E
	s_cbranch_execz 1                                          // 000000001708: BF880001 <other_side+0x10>
	v_mov_b32_e32 v1, v2                                       // 00000000170C: 7E020302
	s_andn2_saveexec_b64 s[0:1], s[0:1]                        // 000000001710: BE802300
	v_mfma_scale_f32_32x32x64_f8f6f4 v[2:17], v[4:7], v[8:11], 0, v1, v2 op_sel_hi:[0,0,0] cbsz:4 blgp:4// 000000001714: D3AC0000 00020501 D3AE0C02 82021104
	s_or_b64 exec, exec, s[0:1]                                // 000000001724: 87FE007E
	s_endpgm                                                   // 000000001728: BF810000
"""
KERNEL = """
typedef float floats __attribute__((ext_vector_type(4)));
typedef int ints __attribute__((ext_vector_type(8)));
extern "C" __attribute__((global)) void kernel(floats* out, const ints* in, const int* scale, int n) {
  const int lane = __builtin_amdgcn_workitem_id_x();
  floats sum = {};
  sum = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(in[lane], in[lane + 64], sum, 4, 4, 0, scale[lane], 0, scale[lane + 64]);
  if (scale[lane + 128] < n) out[lane] = sum;
}
"""


def self_test(objdump: str, compiler: str) -> None:
    total, wrong = complaints(GOOD)
    assert (total, wrong) == (2, []), wrong
    total, wrong = complaints(BAD)
    assert total == 2 and len(wrong) == 2 and wrong[0].startswith("sunk") and wrong[1].startswith("other_side"), wrong
    assert complaints("")[1], "nothing to read must not pass"
    print("stored disassembly: the good one passes, both bad ones are found")
    if not compiler or not objdump:
        print("no clang++-22 with llvm-objdump-22 here: nothing was compiled")
        return
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernel.hip"
        source.write_text(KERNEL)
        for flags in (["-mllvm", "-disable-machine-sink"], []):
            made = pathlib.Path(folder) / "kernel.co"
            command = [compiler, "-x", "hip", "--offload-arch=gfx950", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib"]
            subprocess.run([*command, "-nogpuinc", "-O3", "-std=c++20", *flags, str(source), "-o", str(made)], check=True)
            total, wrong = complaints(disassemble(made, objdump))
            assert total == 1, f"the compiled kernel has {total} scaled MFMAs"
            if flags:
                assert not wrong, wrong
                print(f"{compiler} {' '.join(flags)}: the scaled MFMA stays where it was")
            else:
                print(f"{compiler} without it: {'sinks the scaled MFMA, and that is found' if wrong else 'no longer sinks it: the flag may go'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--objdump", default=next(filter(None, map(shutil.which, ("llvm-objdump-22", "llvm-objdump-23"))), ""))
    parser.add_argument("--compiler", default=next(filter(None, map(shutil.which, ("clang++-22", "clang++-23"))), ""))
    arguments = parser.parse_args()
    if not arguments.files and not arguments.self_test:
        parser.error("name a code object, or --self-test")
    if arguments.self_test:
        self_test(arguments.objdump, arguments.compiler)
    bad = 0
    for file in arguments.files:
        if file.suffix not in (".s", ".txt") and not arguments.objdump:
            sys.exit("no llvm-objdump-22 to read a code object with: apt-get install llvm-22")
        total, wrong = complaints(disassemble(file, arguments.objdump))
        for line in wrong:
            print(f"{file}: {line}", file=sys.stderr)
        print(f"{file}: {total} scaled MFMAs, {len(wrong)} complaints")
        bad += len(wrong)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
