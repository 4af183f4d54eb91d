#!/bin/sh
# Compiles src/gpu/unpack_kernels.cu into the checked-in PTX, or, with --check, says whether the
# checked-in PTX still belongs to its source. The PTX records the hash of its source and the
# version of nvcc; bytes are compared only under the same nvcc. NVCC names another compiler.
set -eu

folder=src/gpu
source=$folder/unpack_kernels.cu
ptx=$folder/unpack_kernels.ptx
nvcc=${NVCC:-nvcc}

# The oldest GPU the current nvcc compiles for, and a PTX version that CUDA 12 drivers accept.
target=75
ptx_version=8.0

# Everything that the compiled text depends on.
source_hash() {
    cat "$source" $folder/kernels.h src/abi/unpack_queue.h | sha256sum | cut -d' ' -f1
}

nvcc_version() {
    "$nvcc" --version | sed -n 's/^Cuda compilation tools, release .*, V//p'
}

compile() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$nvcc" -ptx -arch=compute_$target -O3 -std=c++17 -Isrc -o "$work/raw.ptx" "$source"
    {
        echo "// Compiled from unpack_kernels.cu by scripts/make-ptx.sh; do not edit."
        echo "// source: $(source_hash)"
        echo "// nvcc: $(nvcc_version)"
        # nvcc writes its own PTX version; the text uses nothing newer than the one named here.
        sed -e '/^\/\//d' -e "s/^\.version .*/.version $ptx_version/" "$work/raw.ptx"
    } >"$1"
}

recorded() {
    sed -n "s|^// $1: ||p" "$ptx"
}

case "${1:-}" in
'')
    compile "$ptx.new"
    mv "$ptx.new" "$ptx"
    ;;
--check)
    if [ "$(recorded source)" != "$(source_hash)" ]; then
        echo "$ptx is stale: $source or a header of it has changed; run 'make ptx'"
        exit 1
    fi
    if command -v "$nvcc" >/dev/null && [ "$(recorded nvcc)" = "$(nvcc_version)" ]; then
        again=$(mktemp)
        compile "$again"
        cmp "$again" "$ptx" || {
            rm -f "$again"
            echo "$ptx differs from what this nvcc makes of its source; run 'make ptx'"
            exit 1
        }
        rm -f "$again"
    fi
    ;;
*)
    echo "usage: make-ptx.sh [--check]" >&2
    exit 2
    ;;
esac
