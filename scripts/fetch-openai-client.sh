#!/usr/bin/env bash
# Prints a folder for PYTHONPATH that holds the Python package openai, fetching it once into .cache at the repository's
# root. Needs python3 with pip. Safe to run several times at once; silent when the package is there.
set -euo pipefail

package="openai==3.51.0"

source "$(dirname "${BASH_SOURCE[0]}")/once.sh"
# What it brings along is built for one version of Python.
installed="$cache/${package/==/-}-$(python3 -c 'import sys; print(sys.implementation.cache_tag)')"

fetch() {
    echo "fetching $package" >&2
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-warn-conflicts \
        --only-binary :all: --target "$temporary/installed" "$package" >&2
    PYTHONPATH="$temporary/installed" python3 -c "import openai"
    mv "$temporary/installed" "$installed"
}

once fetch-openai-client "$installed" fetch
echo "$installed"
