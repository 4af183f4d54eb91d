# What `make dist` made is what it should be: the source archive builds where nothing else is, its
# tests run, and the wheel moves memory between two processes of a Python that has nothing but it.
#
# usage: dist.sh FOLDER SOURCES     as of scripts/make-dist.sh
. tests/tap.sh
. tests/packages/transfer.sh

folder=$1 sources=$2
name=${sources##*/}
unset BUILD SANITIZE WERROR
export NCCL_SOCKET_IFNAME=lo UCCL_TCPX_GPU=host

# listed ARCHIVE: the files in it, without the folder that all are in.
listed()
{
    tar -tf "$1" | sed -n "s|^$name/||p" | grep -v -e '/$' -e '^PKG-INFO$' -e '^$' | sort
}

git ls-files | sort >"$TAP_WORK/tracked"
listed "$folder/$name.tar.xz" >"$TAP_WORK/sources"
listed "$folder/$name.tar.gz" >"$TAP_WORK/python"
check "the source archive has what git tracks" diff "$TAP_WORK/tracked" "$TAP_WORK/sources"
check "so has that for Python" diff "$TAP_WORK/tracked" "$TAP_WORK/python"

# again FILE: the same bytes, made once more, when all files have other times.
again()
{
    cp -a "$sources" "$TAP_WORK/again"
    find "$TAP_WORK/again" -type f -exec touch {} +
    PYTHONPATH=$sources/python/backend "$PYTHON" -B -c '
import pathlib, sys, tcpx_build
tcpx_build.ROOT = pathlib.Path(sys.argv[1])
tcpx_build.build_sdist(sys.argv[2])' "$TAP_WORK/again" "$TAP_WORK"
    cmp "$TAP_WORK/$name.tar.gz" "$folder/$name.tar.gz"
}
check "which has the same bytes when it is made again" again

check "make" make -C "$sources" -j"$(nproc)"
check_output "the program is of this version" "^tcpx ${name#tcpx-}\$" "$sources/build/tcpx" version
check "it moves memory, verified" "$sources/build/tcpx" perf --loopback --size 1M --iters 2
check "tests compile" make -C "$sources" -j"$(nproc)" build/tests/unit/test_parse build/tests/unit/test_wire
for unit in parse wire; do
    check "and pass: unit/$unit" "$sources/build/tests/unit/test_$unit"
done

check "a Python environment with nothing in it" "$PYTHON" -m venv "$TAP_WORK/venv"
python=$TAP_WORK/venv/bin/python
check "pip installs the wheel" "$python" -m pip install -q --no-index --disable-pip-version-check \
    "$(echo "$folder/$name"-cp311-abi3-*.whl)"
check_output "its program runs" "^tcpx ${name#tcpx-}\$" "$python" -m tcpx version
check_output "it moves bytes between two processes" '^received: hello$' python_transfer "$python"

tap_end
