#!/bin/sh
# docs/matrix.png: the page of tcpx matrix as a browser shows it, of six ranks on this machine that stand for
# hosts, of which one sends slowly (TCPX_TEST_THROTTLE, in the build of the tests). Needs chromium
# (Debian: chromium) and the tests' program: make build/tests/support/tcpx.
#
# usage: matrix-picture.sh [PROGRAM [PICTURE]]
set -eu

program=$(realpath "${1:-build/tests/support/tcpx}")
picture=$(realpath "${2:-docs/matrix.png}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Gets a host and a command, as ssh does.
# shellcheck disable=SC2016
printf '%s\n' '#!/bin/sh' 'eval "exec $2"' >"$folder/ssh"
chmod +x "$folder/ssh"
NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host TCPX_TEST_THROTTLE=send:400M@3 "$program" matrix \
    --hosts node1,node2,node3,node4,node5,node6 --ssh "$folder/ssh" --meet 127.0.0.1 \
    --iters 8 --seconds 3 --html "$folder/page.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1240,760 \
    --screenshot="$picture" "file://$folder/page.html" 2>"$folder/log" || cat "$folder/log"
