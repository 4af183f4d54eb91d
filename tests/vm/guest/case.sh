# One case, in a shell of its own: case.sh NAME
. /guest/lib.sh
CASE=$1
WORK=/tmp/$CASE
OUTPUT=$WORK/.output
mkdir -p "$WORK" || exit 1
cd "$WORK" || exit 1
# shellcheck disable=SC1090
. "/cases/$CASE.sh"
cd / && rm -rf "$WORK"
