#!/usr/bin/env bash
# The Python of an emulated board: FOLDER/cortex-a72, a link to this file that make_root.sh makes, and Python's arguments.
# -0: sys.executable is this command, so that a Python started from Python is emulated, too.
folder=$(realpath "$(dirname "$0")") board=$(basename "$0")
cpu=$board
[ "$board" = broken ] && cpu=cortex-a72
exec "$folder/qemu-aarch64-static" -cpu "$cpu" -L "$folder/boards/$board" -0 "$folder/$board" \
    -E PYTHONHOME="$folder/root/usr" -E PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$folder/site" \
    "$folder"/root/usr/bin/python3.* "$@"
