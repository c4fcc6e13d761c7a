#!/usr/bin/env bash
# usage: tools/pack_programs.sh FOLDER PROGRAM...
# Copies programs into FOLDER, stripped, with the shared libraries they need beside them (glibc's apart), so that they run on a machine
# that has nothing of ours. They must have been linked with the run path $ORIGIN. For machines with a GPU that cannot build.
# Makes FOLDER.tar.gz of it too, a third as large.
set -euo pipefail
(($# >= 2)) || { sed -n 2,5p "$0" >&2; exit 2; }
folder=$1
shift
rm -rf "$folder"
mkdir -p "$folder"
for program in "$@"; do
  strip -o "$folder/$(basename "$program")" "$program"
  ldd "$program" | awk '$2 == "=>" { print $3 }' | grep -vE '/(libc|libm|libdl|librt|libpthread)\.so' | xargs -r cp -Lu -t "$folder"
done
tar -C "$folder" -czf "$folder.tar.gz" .
du -sh "$folder" "$folder.tar.gz"
