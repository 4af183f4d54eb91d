# Programs of tests/net, to be sourced after tests/tap.sh: . tests/net/compile.sh

# compile_program PROGRAM [OBJECT...]: tests/net/PROGRAM.c into $TAP_WORK/PROGRAM, unless it is there, as
# the library of this run is compiled. Without objects it is one thread, which has no use for the thread
# sanitizer.
compile_program()
{
    compile_name=$1
    shift
    [ ! -x "$TAP_WORK/$compile_name" ] || return 0
    compile_sanitize=${SANITIZE:+-fsanitize=$SANITIZE -fno-sanitize-recover=all}
    [ $# -gt 0 ] || case ${SANITIZE-} in
    *thread*) compile_sanitize= ;;
    esac
    # Words on purpose: the compiler and the flags can be several.
    # shellcheck disable=SC2086
    ${CC:-cc} -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc -I. -Wall -Wextra -Wshadow \
        -Wstrict-prototypes -Wmissing-prototypes ${WERROR:+-Werror} ${CFLAGS--O2 -g} \
        $compile_sanitize "tests/net/$compile_name.c" "$@" -o "$TAP_WORK/$compile_name" ${LDFLAGS-} -ldl -pthread
}

# compile_with_library PROGRAM: with the objects of the library.
compile_with_library()
{
    # Words on purpose.
    # shellcheck disable=SC2046
    compile_program "$1" $(library_objects)
}
