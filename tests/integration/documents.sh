# What is written about the program agrees with the program.
. tests/tap.sh

check "docs/environment.md and man page have the variables of this build" scripts/make-docs.sh --check "$BUILD/tcpx"

# The check itself notices a change.
mkdir -p "$TAP_WORK/copy/man" "$TAP_WORK/copy/docs"
cp docs/environment.md "$TAP_WORK/copy/docs/"
cp man/tcpx.1 "$TAP_WORK/copy/man/"
sed -i 's/UCCL_TCPX_GPU/UCCL_TCPX_CPU/' "$TAP_WORK/copy/docs/environment.md"
program=$(cd "$(dirname "$BUILD/tcpx")" && pwd)/tcpx
script=$PWD/scripts/make-docs.sh
check_fails "a stale table is noticed" sh -c "cd '$TAP_WORK/copy' && '$script' --check '$program'"
check "and brought up to date" sh -c "cd '$TAP_WORK/copy' && '$script' '$program' && '$script' --check '$program'"

version=$("$BUILD/tcpx" version | cut -d' ' -f2)
check "the changelog begins with this version" sh -c "grep -m1 '^## ' CHANGELOG.md | grep -qF '## $version'"
check "so does that of Debian's packages" sh -c "head -n 1 debian/changelog | grep -qF 'tcpx ($version-'"
for page in $(grep -L '^\.so ' man/*.[137]); do # those of section 3 that are links have no text
    check "$page is of this version" grep -qF "\"tcpx $version\"" "$page"
    with_program mandoc check "$page is well-formed" mandoc -T lint -W warning "$page"
done

# Every subcommand has help and a place in the man page; tests/integration/man.sh has the functions.
for command in $("$BUILD/tcpx" help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    check_output "tcpx $command --help" "^usage: tcpx $command" "$BUILD/tcpx" "$command" --help
    check "tcpx $command is in the man page" grep -q "^\.B tcpx $command" man/tcpx.1
done

tap_end
