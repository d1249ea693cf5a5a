#!/bin/sh
# Makes a board's environment of the wheels beside this file, or what it lacks of it: sh install.sh PYTHON ENVIRONMENT
# It needs no network, no compiler and no ensurepip, since pip runs from its own wheel. What is there and right stays.
set -eu
python=$1 environment=$2 list=$2/hepti-wheels
cd "$(dirname "$0")"
exec 9> lock
flock --nonblock 9 || { echo "another installation of $environment is at work" >&2; exit 1; }
# An environment whose Python has become another release finds nothing of what was installed for the old one.
"$environment/bin/python" -c 'import os, sys; os.stat(sys.prefix + "/lib/python%d.%d" % sys.version_info[:2])' 2> /dev/null ||
    "$python" -m venv --clear --without-pip "$environment"
touch "$list"
grep -vxF -f "$list" SHA256SUMS > lacking || true
[ ! -s lacking ] || sha256sum --check --quiet --strict lacking
set -- $(sed 's/^[^ ]*  //' lacking | grep -v '^pip-' || true)
if [ $# -gt 0 ]; then
    rm "$list" # until all is there nothing is known to be
    "$environment/bin/python" "$(echo pip-*.whl)/pip" install --quiet --no-index --no-deps --force-reinstall \
        --no-compile --no-warn-script-location --disable-pip-version-check --root-user-action=ignore "$@"
fi
cp SHA256SUMS "$list.part"
mv "$list.part" "$list"
