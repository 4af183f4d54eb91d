# What the page of tcpx perf --html draws; tests/support/perf_page.js has the tests.
. tests/tap.sh

command -v node >/dev/null || tap_skip_all "node is not installed (Debian: nodejs)"
node tests/support/perf_page.js
