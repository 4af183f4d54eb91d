# tcpx report: runs of tcpx perf in one page, and what is refused.
. tests/tap.sh

tcpx=$BUILD/tcpx
export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host
cd "$TAP_WORK" || exit 1
case $tcpx in /*) ;; *) tcpx=$OLDPWD/$tcpx ;; esac
page=$OLDPWD/tests/support/perf_page.js

check "a run" sh -c "'$tcpx' perf --loopback --host --sweep 1K:16K --iters 3 --json >before.json"
check "another run" sh -c "'$tcpx' perf --loopback --host --sweep 4K:16K --iters 3 --check none --json >'<after>.json'"
check "both in one page" "$tcpx" report before.json '<after>.json' -o both.html
check "no name ends the script that it is in" test "$(grep -c '</script' both.html)" -eq 2
with_program node check_output "is drawn" '2 runs beside each other' sh -c "cd '$OLDPWD' && node '$page' '$TAP_WORK/both.html'"
with_program node also "with their names" '&lt;after&gt;'
with_program node also "and what was not verified" 'NOT VERIFIED'
check "one run is the page of tcpx perf" "$tcpx" report before.json -o one.html
with_program node check_output "with its stages" 'Where the time goes' sh -c "cd '$OLDPWD' && node '$page' '$TAP_WORK/one.html'"
cat before.json before.json before.json >server.json
check "what a server printed for several clients" "$tcpx" report server.json -o server.html
check_output "has a number for each" '"name": "server, 3"' cat server.html

check_fails_output "no file" "a file of 'tcpx perf --json' is expected" "$tcpx" report -o x.html
check_fails_output "no page" "the page's file is missing: '-o'" "$tcpx" report before.json
check_fails_output "a file that is not there" 'cannot read nothing.json: No such file' "$tcpx" report nothing.json -o x.html
check_fails_output "a folder" 'cannot read .: Is a directory' "$tcpx" report . -o x.html
head -c 300 before.json >half.json
echo '{"version": "1"}' >foreign.json
for bad in half foreign; do
    check_fails_output "a $bad file" "$bad.json is not what 'tcpx perf --json' prints" "$tcpx" report before.json $bad.json -o x.html
done
check_fails "nothing is written then" test -e x.html
check_fails_output "too many runs" 'more than 8 runs' "$tcpx" report server.json server.json server.json -o x.html
check_fails_output "a full disk" 'cannot write /dev/full: No space left' "$tcpx" report before.json -o /dev/full
check_fails_output "no room for the page" 'cannot write .*/no/x.html: No such file' "$tcpx" report before.json -o "$TAP_WORK/no/x.html"

tap_end
