# The backend in one version of NIXL, from a wheel that is fetched once and kept in build/nixl.
# usage: run.sh BUILD VERSION CASES, of tests/nixl/cases.py; "refused" for a version that is not supported
# A machine that cannot have the wheel skips it, in words.
set -eu

build=$(cd "$1" && pwd)
version=$2
cases=$3
python=${PYTHON:-python3}
kept=$PWD/build/nixl
wheel=nixl-cu12

skip()
{
    echo "$1"
    exit 77
}

# fetch FOLDER PACKAGE: whole or not at all.
fetch()
{
    [ ! -d "$kept/$1" ] || return 0
    mkdir -p "$kept"
    rm -rf "$kept/.$1"
    "$python" -m pip install --quiet --no-deps --only-binary :all: --no-input --disable-pip-version-check \
        --root-user-action ignore ${NIXL_WHEELS:+--find-links "$NIXL_WHEELS"} --target "$kept/.$1" "$2" \
        >"$kept/.log" 2>&1 || return 1
    # Two runs may fetch the same.
    mv "$kept/.$1" "$kept/$1" 2>/dev/null || rm -rf "$kept/.$1"
}

[ -f "$build/libplugin_TCPX.so" ] || skip "there is no C++ compiler"
"$python" -m pip --version >/dev/null 2>&1 || skip "$python has no pip, so there is no wheel of NIXL"
fetch numpy numpy || skip "no wheel of numpy: $(tail -1 "$kept/.log")"
fetch "$version" "$wheel==$version" || skip "no wheel of $wheel $version: $(tail -1 "$kept/.log")"

export PYTHONPATH="$kept/$version:$kept/numpy:$PWD/tests/nixl/without_torch" PYTHONDONTWRITEBYTECODE=1
plugins=$(sh scripts/nixl-plugins.sh "$python")
install -m 755 "$build/libplugin_TCPX.so" "$plugins/"
# shellcheck disable=SC2086
exec "$python" tests/nixl/cases.py $cases
