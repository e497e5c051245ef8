# Sourced by the scripts that fetch something into .cache at the repository's root.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cache="$root/.cache"

# once LOCK RESULT COMMAND...: unless there is a RESULT, runs COMMAND, which finds a folder of its own in $temporary and
# renames what it made to RESULT in the end, so that nothing half made ever has that name. Whoever comes meanwhile waits.
once() {
    local lock=$1 result=$2
    shift 2
    if [[ -e "$result" ]]; then return; fi
    mkdir -p "$cache"
    exec 9>"$cache/$lock.lock"
    flock 9
    if [[ -e "$result" ]]; then return; fi
    temporary="$(mktemp -d "$cache/$lock.XXXXXX")"
    trap 'rm -rf "$temporary"' EXIT
    "$@"
}
