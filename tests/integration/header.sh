# tcpx.h, and the name it had before, in programs of every kind: C and C++, old and new, strict, with
# NCCL's own names before and after it, twice, and first of all headers.
. tests/tap.sh

nccl='#define NCCL_PTR_HOST 0x1
#define NCCL_PTR_CUDA 0x2
#define NCCL_PTR_DMABUF 0x4
#define NCCL_NET_HANDLE_MAXSIZE 128'
own_handle='#define TCPX_OWN_NCCL_NET_HANDLE_V7
struct ncclNetHandle_v7 { char bytes[128]; };'

# A program that needs what it is there for.
use='static int use(void *comm, void *data, void *memory, void **request)
{
    struct tcpx_net_properties properties;
    struct tcpx_fragments fragments = {0, 0, 0};
    struct ncclNetHandle_v7 handle;
    int result = tcpx_get_properties(0, &properties);

    if (result != TCPX_SUCCESS || (properties.ptr_support & NCCL_PTR_CUDA) == 0)
        return tcpx_listen(0, &handle, &comm);
    result = tcpx_reg_mr(comm, data, sizeof handle == 128 ? 4096 : 0, NCCL_PTR_HOST, &memory);
    if (result == TCPX_SUCCESS)
        result = tcpx_isend(comm, data, 23, 42, memory, request);
    return result == TCPX_SUCCESS ? tcpx_wait_request(*request, TCPX_DEFAULT_TIMEOUT, 0, &fragments)
                                  : result;
}
int main(void)
{
    void *request = 0;

    return use(0, 0, 0, &request);
}'

strict="-Wall -Wextra -Wpedantic -Wshadow -Werror -Iinclude -c -o $TAP_WORK/object"

# compiles NAME LINES...: in C and in C++.
compiles()
{
    name=$1
    shift
    printf '%s\n' "$@" >"$TAP_WORK/program.c"
    cp "$TAP_WORK/program.c" "$TAP_WORK/program.cc"
    for standard in c99 c11 gnu17; do
        # shellcheck disable=SC2086
        check "$name, $standard" "$CC" -std=$standard -Wstrict-prototypes $strict \
            "$TAP_WORK/program.c"
    done
    for standard in c++11 c++17; do
        # shellcheck disable=SC2086
        with_program c++ check "$name, $standard" c++ -std=$standard $strict "$TAP_WORK/program.cc"
    done
}

for header in tcpx.h tcpx_interface.h; do
    include="#include \"$header\""
    compiles "$header alone" "$include" "$use"
    compiles "$header twice" "$include" "$include" "$use"
    compiles "$header after NCCL's names" "$nccl" "$include" "$use"
    compiles "$header before NCCL's names" "$include" "$nccl" "$use"
    compiles "$header with somebody's own handle" "$own_handle" "$include" "$use"
done
compiles "both headers" '#include "tcpx_interface.h"' '#include "tcpx.h"' "$use"

# Results may not be dropped unseen.
printf '%s\n' '#include "tcpx.h"' 'int main(void) { tcpx_close_send(0); return 0; }' \
    >"$TAP_WORK/dropped.c"
# shellcheck disable=SC2086
check_fails "a result that is not looked at" "$CC" -std=c11 $strict "$TAP_WORK/dropped.c"

tap_end
