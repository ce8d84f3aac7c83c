#!/bin/sh
# Finds a Python that can run set_up.py, or says in one line why there is none. Arguments are extras, such as `dev`.
set -eu
cd "$(dirname "$0")/.."

fail() {
    printf 'octavo: error: %s\n' "$1" >&2
    exit 1
}

python=${PYTHON:-python3}
# Unless another Python is asked for, an environment that exists is checked by its own.
if [ "$python" = python3 ] && [ -x .venv/bin/python ]; then
    exec .venv/bin/python scripts/set_up.py "$@"
fi

command -v "$python" >/dev/null 2>&1 ||
    fail "there is no $python; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.11"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "$python does not run; name another Python: make PYTHON=/path/to/python3.11"
case $version in
3.1[1-9] | 3.[2-9][0-9] | [4-9].*) ;;
*) fail "$python is Python $version, and Octavo needs 3.11 or newer; name one: make PYTHON=/path/to/python3.11" ;;
esac
"$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    fail "$python cannot make a virtual environment (no ensurepip); on Debian and Ubuntu: apt install python3-venv"
exec "$python" scripts/set_up.py "$@"
