#!/bin/sh
# Draws docs/perf-report.png: the page of the run in docs/perf-report.json, which is what
# `tcpx perf --loopback --host --sweep 4:4M --time 1 --json` printed. Needs chromium, and build/tcpx.
# Usage: make-report-picture.sh
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build/tcpx report docs/perf-report.json -o "$work/page.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,2150 \
    --user-data-dir="$work/profile" --screenshot="$work/page.png" "file://$work/page.html" 2>"$work/errors" ||
    {
        cat "$work/errors" >&2
        exit 1
    }
cp "$work/page.png" docs/perf-report.png
