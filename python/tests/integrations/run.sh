#!/bin/sh
# Tests tcpx.integrations with the released packages, which are fetched once and kept in build/integrations.
# From `make check-integrations`, which sets BUILD, PYTHON, RUNNER and INTEGRATIONS: requirements as pip reads them.
# A package that cannot be had is skipped, in words.

tests=python/tests/integrations
venv=build/integrations
python=$venv/bin/python

newline='
'
suites=
add()
{
    suites="$suites$*$newline"
}

# have REQUIREMENT: is in the virtual environment, or is put there. $log says why not.
have()
{
    log=$venv/$(echo "$1" | tr -c 'a-z0-9.\n' _).log
    [ ! -e "$log.done" ] || return 0
    [ -x "$python" ] || "$PYTHON" -m venv "$venv" >/dev/null 2>&1 || return 1
    timeout "${INTEGRATIONS_SECONDS:-900}" "$python" -m pip install --quiet --no-input --disable-pip-version-check \
        --retries 1 --timeout 10 "$1" numpy >"$log" 2>&1 || return 1
    touch "$log.done"
}

for requirement in $INTEGRATIONS; do
    name=${requirement%%[=<>~!]*}
    case $name in
    torch) test=python/tests/test_torch.py ;;
    ray | lmcache) test=$tests/test_$name.py ;;
    *) echo "INTEGRATIONS: '$requirement': expected ray, torch or lmcache, with a version or without" >&2 && exit 2 ;;
    esac
    if have "$requirement"; then
        add "integrations/$name: $python $test"
    else
        add "skip integrations/$name: pip could not install $requirement, see $log"
    fi
done

export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH="$BUILD/python:$PWD/python/tests"
# Of Ray: no key in the home folder, no message to anybody.
export RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0

IFS=$newline
# shellcheck disable=SC2086 # a list of lines
exec "$RUNNER" --timeout 240 $suites
