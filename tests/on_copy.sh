# Tests on a copy of this machine that is thrown away (tests/scratch_root.sh), to be sourced after
# tests/tap.sh.

# on_copy NAME COMMAND...: the command prints results of its own, with their plans; so this comes before
# the first check of the script. NAME is what is skipped where there can be no copy.
on_copy()
{
    copy_name=$1
    shift
    tap_run tests/scratch_root.sh "$PWD" "$@"
    if [ "$TAP_STATUS" -eq 77 ]; then
        tap_skip "$copy_name" "$(cat "$TAP_OUTPUT")"
        return
    fi
    cat "$TAP_OUTPUT"
    [ "$TAP_STATUS" -eq 0 ] || TAP_FAILED=1
}
