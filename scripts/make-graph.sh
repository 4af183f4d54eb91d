#!/bin/sh
# Draws docs/graph.svg of src/rooms; with --check, says whether it is up to date.
# Usage: make-graph.sh [--check]
set -eu

picture=docs/graph.svg
new=$(mktemp)
trap 'rm -f "$new"' EXIT
find src -name '*.[ch]' -o -name '*.cu' | sed 's|^src/|file |' |
    awk -f scripts/graph/picture.awk src/rooms - >"$new"

if [ "${1:-}" != --check ]; then
    cat "$new" >"$picture"
elif ! cmp -s "$new" "$picture"; then
    echo "$picture is stale: run 'make graph'"
    exit 1
fi
