#!/bin/sh
# Runs the tests of the Python package with each CPython from 3.11 on that this machine has, and those
# of the wheel. From `make check-python`, which sets BUILD, PYTHON, RUNNER, CC and SANITIZE.

tests=python/tests
packages=$BUILD/python-venv

# The first of each version that runs, by its name or where pyenv keeps it: the program itself, since a
# script in its place would run under the sanitizer as well.
pythons()
{
    for version in 3.11 3.12 3.13 3.14; do
        for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3; do
            program=$("$candidate" -c 'import sys; print(sys.executable)' 2>/dev/null) || continue
            echo "$version $program"
            break
        done
    done
}

# What the tests use beyond Python itself, of a package index. Without it they are skipped, in words.
make_venv()
{
    [ -e "$packages/complete" ] && return
    rm -rf "$packages"
    "$PYTHON" -m venv "$packages" >/dev/null 2>&1 || return
    timeout 100 "$packages/bin/python" -m pip install -q --disable-pip-version-check --timeout 10 \
        --retries 1 numpy auditwheel >"$packages/log" 2>&1 && touch "$packages/complete"
}

newline='
'
suites=
add()
{
    suites="$suites$*$newline"
}

# runtime_of NAME GCC_NAME: of a sanitizer. clang finds gcc's, too, which is not its own.
runtime_of()
{
    runtime=$("$CC" -print-file-name="libclang_rt.$1-$(uname -m).so")
    [ -e "$runtime" ] || runtime=$("$CC" -print-file-name="$2")
    [ -e "$runtime" ] && return
    "$RUNNER" "skip python: there is no $2 of $CC that Python could be started with"
    exit
}

# The extension finds the runtime of the sanitizer in the process: Python has none of its own.
under='' options=''
case ${SANITIZE-} in
*address*)
    runtime_of asan libasan.so
    under="LD_PRELOAD=$runtime PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 "
    ;;
*thread*)
    runtime_of tsan libtsan.so
    under="LD_PRELOAD=$runtime TSAN_OPTIONS=die_after_fork=0:report_signal_unsafe=0 "
    options=--no-aslr
    ;;
esac

export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host PYTHONPATH="$BUILD/python" PYTHONDONTWRITEBYTECODE=1
add alone # what is added up here is of one machine: times and descriptors
for name in transfers windows asyncio lifetime; do
    for found in $(pythons | tr ' ' '='); do
        add "python/${found%%=*}/$name: ${under}${found#*=} -W error $tests/test_$name.py"
    done
done
for version in 3.11 3.12 3.13; do
    pythons | grep -q "^$version " ||
        add "skip python/$version: there is no python$version on this machine"
done
make_venv
python=$packages/bin/python
[ -x "$python" ] || python=$PYTHON
add "python/numpy: $under$python $tests/test_numpy.py"
add "python/doctor: $under$python -W error $tests/test_doctor.py"
add "python/examples: $under$python $tests/test_examples.py"
if [ -n "${SANITIZE-}" ]; then
    add "skip python/wheel: the wheel is built without a sanitizer"
else
    add "python/wheel: $python $tests/test_wheel.py"
fi

IFS=$newline
# shellcheck disable=SC2086 # a list of lines
exec "$RUNNER" --timeout 60 $options $suites
