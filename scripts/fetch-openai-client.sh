#!/usr/bin/env bash
# Prints a folder for PYTHONPATH that holds the Python package openai, fetching it once into .cache at the repository's
# root. Needs python3 with pip. Safe to run several times at once; silent when the package is there.
set -euo pipefail

package="openai==3.51.0"

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cache="$root/.cache"
# What it brings along is built for one version of Python.
installed="$cache/${package/==/-}-$(python3 -c 'import sys; print(sys.implementation.cache_tag)')"

# Only one that was seen to load ever gets this name.
if [[ ! -d "$installed" ]]; then
    mkdir -p "$cache"
    exec 9>"$cache/fetch-openai-client.lock"
    flock 9
fi
if [[ ! -d "$installed" ]]; then
    temporary="$(mktemp -d "$cache/fetch-openai-client.XXXXXX")"
    trap 'rm -rf "$temporary"' EXIT
    echo "fetching $package" >&2
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-warn-conflicts \
        --only-binary :all: --target "$temporary/installed" "$package" >&2
    PYTHONPATH="$temporary/installed" python3 -c "import openai"
    mv "$temporary/installed" "$installed"
fi
echo "$installed"
