#!/bin/sh
# Shows that the test runner cannot be fooled: fake suites pass, fail, skip, crash, hang, leave
# processes behind and stop half way, and each time its last line and its status say so.

. tests/tap.sh

runner=$BUILD/tests/runner
[ -x "$runner" ] || tap_skip_all "$runner is not built"
cd "$TAP_WORK" || exit 1
case $runner in
/*) ;;
*) runner=$OLDPWD/$runner ;;
esac

two="echo 1..2; echo ok 1 - a; echo ok 2 - b"

# expect NAME STATUS LAST-LINE RUNNER-ARGUMENT...
expect()
{
    expect_name=$1 expect_status=$2 expect_last=$3
    shift 3
    tap_run "$runner" --log logs "$@"
    [ "$TAP_STATUS" -eq "$expect_status" ] && [ "$(tail -n 1 "$TAP_OUTPUT")" = "$expect_last" ]
    tap_judge $? "$expect_name" "$expect_status and '$expect_last'"
}

# gone NAME FILE: the process whose id the file holds is not there any more.
gone()
{
    check_fails "$1" kill -0 "$(cat "$2")"
}

# --- what a suite says

expect "a passing suite" 0 "2 passed, 0 failed, 0 skipped" "unit/x: $two"
also "one line for a passing suite" '^\[1/1\] pass  unit/x +2 passed +[0-9]+\.[0-9][0-9] s$'
check "no more than that and the last line" [ "$(wc -l <"$TAP_OUTPUT")" -eq 2 ]

expect "a failed test" 1 "1 passed, 1 failed, 0 skipped" \
    "x: echo 1..2; echo ok 1 - a; echo not ok 2 - broken; echo '# why'; exit 1"
also "a failed suite's line" '^\[1/1\] FAIL  x '
also "a failed suite's output" '^    # why$'
also "the name of a failed test" '^  x: broken$'

expect "a failed test fails the run even if its suite ends well" 1 \
    "1 passed, 1 failed, 0 skipped" "x: echo 1..2; echo ok 1 - a; echo not ok 2 - b"

expect "skips of every form" 0 "1 passed, 0 failed, 4 skipped" \
    "x: echo 1..5; echo ok 1 - a; echo 'ok 2 # SKIP no GPU'; echo 'ok 3 - c # SKIP no NIC'
        echo '# skip: no root'; echo 'not ok 4 # SKIP test_d'
        echo '# skip: no fun'; echo 'not ok 5 # SKIP test_e'"
also "a skip without a name" '^  x: no GPU$'
also "a skip with a name" '^  x: c: no NIC$'
also "a skip of cmocka with its reason before it" '^  x: test_d: no root$'
also "each has its own" '^  x: test_e: no fun$'
expect "a skip without a reason" 1 "1 passed, 3 failed, 4 skipped" \
    "x: echo 1..5; echo ok 1 - a; echo '# skip: no root'; echo 'not ok 2 # SKIP test_b'
        echo 'not ok 3 # SKIP test_c'; echo 'ok 4 - d # SKIP'; echo 'ok 5 # SKIP'"
also "a reason counts once" '^  x: test_c: skipped without a reason$'
also "the name of another" '^  x: d: skipped without a reason$'
expect "a suite that skips itself without a word" 1 "2 passed, 1 failed, 1 skipped" \
    "x: exit 77" "y: $two"

expect "a suite that skips itself" 0 "2 passed, 0 failed, 1 skipped" \
    "x: echo ok 1 - early; echo no such device; exit 77" "y: $two"
also "its reason is its last line" '^  x: no such device$'
also "its line" '^\[1/2\] skip  x '

expect "a suite that could not be built" 0 "2 passed, 0 failed, 1 skipped" \
    "skip unit/z: cmocka is missing" "y: $two"
also "its reason is given" '^  unit/z: cmocka is missing$'

expect "status 77 does not hide a failed test" 1 "0 passed, 1 failed, 0 skipped" \
    "x: echo not ok 1 - a; echo 1..1; exit 77"

# --- the form of TAP

expect "a plan at the end" 0 "1 passed, 0 failed, 0 skipped" "x: echo ok 1 - a; echo 1..1"
expect "several groups" 0 "3 passed, 0 failed, 0 skipped" "x: $two; echo 1..1; echo ok 1 - c"
expect "a group with its plan before, one with its plan behind" 0 "3 passed, 0 failed, 0 skipped" \
    "x: $two; echo ok 1 - c; echo 1..1"
expect "a result behind an unfinished line" 1 "1 passed, 1 failed, 0 skipped" \
    "x: printf 1..2\\\\nfoo; echo ok 1 - a; printf '# bar'; echo not ok 2 - b; exit 1"
expect "text that looks like a result" 0 "2 passed, 0 failed, 0 skipped" \
    "x: echo 1..2; echo '# not ok 1 - quoted'; echo 'it is ok 7 - really'; echo 'looks ok 1 day'
        echo ok 1 - a; echo '    not ok 1 - nested'; echo ok 2 - b"

expect "a missing test" 1 "2 passed, 1 failed, 0 skipped" "x: echo 1..3; echo ok 1; echo ok 2"
also "a missing test in words" '^  x: planned 3 tests, but reported 2$'
expect "a test missing from the first of two groups" 1 "3 passed, 1 failed, 0 skipped" \
    "x: echo 1..2; echo ok 1; $two"
expect "more tests than planned" 1 "3 passed, 1 failed, 0 skipped" "x: $two; echo ok 3 - c"
expect "a test that is reported twice" 1 "2 passed, 1 failed, 0 skipped" \
    "x: echo 1..2; echo ok 1; echo ok 1"
expect "no plan" 1 "1 passed, 1 failed, 0 skipped" "x: echo ok 1 - a"
also "no plan in words" '^  x: printed no plan'

expect "no output" 1 "0 passed, 1 failed, 0 skipped" "x: :"
also "no output in words" '^  x: printed no test results$'
expect "output without TAP" 1 "0 passed, 1 failed, 0 skipped" "x: echo all is ok"
expect "a plan of nothing" 1 "0 passed, 1 failed, 0 skipped" "x: echo 1..0"

# --- how a suite ends

expect "a status without a failed test" 1 "2 passed, 1 failed, 0 skipped" "x: $two; exit 3"
also "a status in words" '^  x: exit status 3, though no test failed$'

expect "a signal" 1 "1 passed, 1 failed, 0 skipped" "x: echo 1..2; echo ok 1 - a; kill -SEGV \$\$"
also "a signal in words" '^  x: killed by signal 11 \(.*\): planned 2 tests, but reported 1$'
expect "a signal behind the last test" 1 "2 passed, 1 failed, 0 skipped" "x: $two; kill -ABRT \$\$"
expect "a signal that a shell passed on" 1 "2 passed, 1 failed, 0 skipped" \
    "x: $two; sh -c 'kill -ABRT \$\$'; exit \$?"
also "that signal in words" '^  x: killed by signal 6 '

expect "a suite that hangs" 1 "3 passed, 1 failed, 0 skipped" \
    "x@0.3: echo 1..2; echo ok 1 - a; sleep 60" "y: $two"
also "a time limit in words" '^  x: timed out after [0-9.]+ s \(its limit is 0.3 s on an idle machine\): planned 2 tests, but'
expect "the time limit of all" 1 "0 passed, 1 failed, 0 skipped" --timeout 0.3 "x: sleep 60"
expect "a suite that ignores SIGTERM" 1 "0 passed, 1 failed, 0 skipped" \
    "x@0.3: echo \$\$ >stubborn; trap '' TERM; while :; do sleep 1; done"
gone "it was killed" stubborn

# --- what a suite leaves behind

expect "a process left behind" 1 "4 passed, 1 failed, 0 skipped" \
    "x: $two; setsid sleep 61 & echo \$! >left" "y: $two"
also "it is named" "^    left behind: pid $(cat left): .*sleep 61\$"
also "it is a failed test" '^  x: left processes behind$'
gone "it was killed, too" left
expect "a daemon with a child" 1 "2 passed, 1 failed, 0 skipped" \
    "x: $two; (setsid sh -c 'sleep 62 & echo \$! >left; wait' &) ; sleep 0.2"
gone "the child of a daemon was killed" left
expect "a process that is just ending is not left behind" 0 "2 passed, 0 failed, 0 skipped" \
    "x: $two; sleep 0.1 &"

# --- the run

expect "nothing passed" 1 "0 passed, 0 failed, 1 skipped" "skip x: not here"
expect "the environment and input of a suite" 0 "1 passed, 0 failed, 0 skipped" \
    "x: test \"\$CMOCKA_MESSAGE_OUTPUT\" = TAP && ! read -r line && echo ok 1 - a && echo 1..1"
check "the log of a suite" grep -q 'ok 1 - a' logs/x.log
expect "long output is cut" 1 "0 passed, 1 failed, 0 skipped" "x: seq 1000; exit 1"
check "to its last lines" [ "$(grep -c '^    [0-9]*$' "$TAP_OUTPUT")" -eq 200 ]
check_fails_output "no suite" '^usage:' "$runner"
check_fails_output "a suite without a command" 'not a suite' "$runner" x
check_fails_output "a time limit that is none" 'not a number of seconds' "$runner" "x@1y: true"
if setarch -R true 2>/dev/null; then
    expect "--no-aslr reaches the suite" 0 "1 passed, 0 failed, 0 skipped" --no-aslr \
        "x: grep -q '^0*40000\$' /proc/self/personality && echo ok 1 - a && echo 1..1"
else
    tap_skip "--no-aslr reaches the suite" "personality() is not allowed here"
fi

# --- second tries

# Fails the first time, passes the second.
once="echo 1..1; if [ -e tried ]; then echo ok 1 - a; else touch tried; echo not ok 1 - a; fi"
expect "a suite that fails once" 0 "3 passed, 0 failed, 0 skipped" --second-tries 1 \
    "x: $once" "y: $two"
remember
says "it is named" '^failed once, and tried again:$'
says "with its test" '^  x: a$'
rm -f tried
expect "without a second try" 1 "2 passed, 1 failed, 0 skipped" "x: $once" "y: $two"
rm -f tried
expect "a suite that fails twice" 1 "0 passed, 1 failed, 0 skipped" --second-tries 1 \
    "x: echo 1..1; echo not ok 1 - a"
expect "more suites than may fail once" 1 "2 passed, 2 failed, 0 skipped" --second-tries 1 \
    "x: $once" "y: echo 1..1; echo not ok 1 - b" "z: $two"
rm -f tried
for how in "kill -SEGV \$\$" "exit 139" "echo ERROR: AddressSanitizer: x; exit 1" \
    "setsid sleep 61 &"; do
    expect "no second try after: $how" 1 "1 passed, 1 failed, 0 skipped" --second-tries 1 \
        "x: echo 1..1; echo ok 1 - a; [ -e tried ] && exit; touch tried; $how"
    rm -f tried
done

# --- lanes

# Each of the two waits for the other, which one after the other would never end.
meets()
{
    echo "touch $1; until [ -e $2 ]; do sleep 0.05; done; $two"
}
expect "two suites beside each other, then one alone" 0 "6 passed, 0 failed, 0 skipped" \
    --timeout 20 --lanes 2 "z: test -e one && test -e two && $two" \
    beside "x: $(meets one two)" "y: $(meets two one)" alone
rm -f one two
expect "one that waits beside one that does not" 0 "6 passed, 0 failed, 0 skipped" \
    --timeout 20 --lanes 2 beside "x: $(meets one two)" "y: $two" waiting "z: $(meets two one)"
expect "the descriptors of a suite" 0 "4 passed, 0 failed, 0 skipped" \
    "x: ls /proc/self/fd >alone; $two" beside "y: ls /proc/self/fd >beside; $two"
check "are the same in a lane" cmp alone beside
expect "what waits, in one lane" 0 "4 passed, 0 failed, 0 skipped" \
    waiting "x: $two" beside "y: $two"
expect "what fails in a lane" 1 "4 passed, 2 failed, 2 skipped" --lanes 3 \
    beside "x: $two" "y: echo 1..1; echo not ok 1 - broken" "skip u: not here" \
    "v: echo no device; exit 77" "w@0.3: sleep 60" alone "z: $two"
also "the name of what failed there" '^  y: broken$'
also "a time limit there" '^  w: timed out after [0-9.]+ s'
also "a reason for a skip there" '^  v: no device$'
expect "a process left behind in a lane" 1 "4 passed, 1 failed, 0 skipped" --lanes 2 \
    beside "x: $two; setsid sleep 61 & echo \$! >left" "y: sleep 1; $two"
gone "it was killed there, too" left
check_fails_output "no lanes" 'not a number from 1 to 64' "$runner" --lanes 0 "x: $two"

# --- some of them --------------------------------------------------------------------------------

expect "the suites that were asked for" 0 "4 passed, 0 failed, 0 skipped" --only 'unit/b* z' \
    "unit/a: exit 1" "unit/b1: $two" beside "z: $two" "zz: exit 1" alone
also "are counted by themselves" '^\[[12]/2\] pass  unit/b1 '
check_output "the names of the suites" '^unit/b1$' "$runner" --list --only 'unit/*' "unit/b1: false"
check_fails_output "a name that no suite has" "no suite is called 'q'" "$runner" --only q "x: $two"
expect "one test of a suite" 0 "1 passed, 0 failed, 0 skipped" --case 'test_a*' \
    "x: echo 1..1; echo ok 1 - \"\$TCPX_TEST_CASE\"" "y: echo 1..0"
also "a suite that does not have it" '^\[2/2\] none  y '
expect "a test that no suite has" 1 "0 passed, 0 failed, 0 skipped" --case q "y: echo 1..0"
program=$(ls "${runner%/*}"/unit/test_queue 2>/dev/null)
if [ -n "$program" ]; then
    cases=$(env CMOCKA_MESSAGE_OUTPUT=TAP "$program" 2>/dev/null | sed -n 's/^ok 1 - //p')
    expect "one test of a program" 0 "1 passed, 0 failed, 0 skipped" --case "$cases" "x: $program"
else
    tap_skip "one test of a program" "the units are not built"
fi
set --
for number in $(seq 20); do
    set -- "$@" "s$number: $two"
done
expect "many suites, the slowest of which are named" 0 "42 passed, 0 failed, 0 skipped" \
    --lanes 2 "slow: sleep 0.3; $two" beside "$@" alone
cp "$TAP_OUTPUT" said
longest=$(awk '/^\[.*\] pass / && $(NF - 1) > most { most = $(NF - 1) } END { print most }' said)
check_output "the slowest first" "^ +$longest s, +[0-9.]+ s of CPU  s" grep -A 1 '^slowest:$' said

# --- a busy machine ------------------------------------------------------------------------------

# A time limit of 1 s is not over after 2 where everything takes 4 times as long.
export TCPX_TEST_SLOWNESS=4
expect "time limits are longer on a slow machine" 0 "2 passed, 0 failed, 0 skipped" \
    "x@1: sleep 2; $two"
export TCPX_TEST_SLOWNESS=99
expect "and end nevertheless" 1 "0 passed, 1 failed, 0 skipped" "x@0.2: sleep 60"
unset TCPX_TEST_SLOWNESS

# Twice as many busy loops as there are CPUs, until the runner sees them.
cat >busy.sh <<'END'
for number in $(seq $((2 * $(nproc)))); do
    sh -c 'while :; do :; done' &
    loops="$loops $!"
done
until [ "$(cat "$TCPX_TEST_METER")" -ge 150 ]; do
    sleep 0.1
done
kill $loops
wait
echo ok 1 - busy
echo 1..1
END
expect "the runner sees that the machine is busy" 0 "1 passed, 0 failed, 0 skipped" \
    "x@30: sh busy.sh"

# slow MEASURED LEAST EXPECTED
slow()
{
    printf '%7d\n' "$1" >meter
    slow_found=$(TCPX_TEST_METER=meter TCPX_TEST_SLOWNESS=$2 && slowness)
    echo "$slow_found"
    [ "$slow_found" -eq "$3" ]
}
check "scripts read what the runner has measured" slow 270 1 270
check "but not more than ten times" slow 5000 1 1000
check "nor less than the environment says" slow 270 3.5 350
expect "suites are told where it is" 0 "1 passed, 0 failed, 0 skipped" \
    "x: [ \$(cat \$TCPX_TEST_METER) -ge 100 ] && echo ok 1 - a && echo 1..1"
check_fails "it is removed" test -e logs/.meter

# ended_by_sigterm RUNNER_ARGUMENT...: while a suite runs that says so.
ended_by_sigterm()
{
    rm -f running
    "$runner" --log logs "$@" >said 2>&1 &
    pid=$!
    until [ -s running ]; do
        sleep 0.05
    done
    kill -TERM "$pid"
    wait "$pid"
    ended_status=$?
    cat said
    [ $ended_status -eq 143 ]
}
runs="echo \$\$ >running; sleep 63"
check "SIGTERM ends the runner and its lanes" \
    ended_by_sigterm --lanes 2 beside "x: $runs" "y: sleep 63" alone "z: $two"
also "an interrupted run of lanes is a failed run" '^0 passed, [12] failed, 0 skipped$'
gone "SIGTERM ends the suite of a lane" running
check "SIGTERM ends the runner" ended_by_sigterm "x: $runs" "y: $two"
also "an interrupted run is a failed run" '^0 passed, 1 failed, 0 skipped$'
gone "SIGTERM ends the suite" running

tap_end
