# One case, in a shell of its own: case.sh NAME
. /guest/lib.sh
TAP_PREFIX="$1: "
cd "$TAP_WORK" || exit 1
check "the devices are ready" bed_reset
# shellcheck disable=SC1090
. "/cases/$1.sh"
cd /
echo "1..$TAP_COUNT"
