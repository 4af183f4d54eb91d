# Explores every state of a model. Status 0: all of them were seen, and none is wrong; 1: one is wrong,
# and the steps that lead to it are shown; 2: the model cannot be built, or the search is not complete.
#
# usage: explore.sh FOLDER MODEL [-l] [-O1] [-DNAME=VALUE...]
#
# FOLDER becomes the place for what is built. -l: also looks for runs without an end. -O1: the search
# is long, so that it pays to compile it well.

folder=$1 model=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
shift 2
optimize=-O0 search=-DSAFETY options=
while :; do
    case ${1-} in
    -l) search=-DNP options=-l ;;
    -O1) optimize=-O1 ;;
    *) break ;;
    esac
    shift
done

# More than any of the searches needs; one that needs more is not complete.
DEPTH=20000
MEGABYTES=3000

mkdir -p "$folder" && cd "$folder" || exit 2
name=$(basename "$model")
cp "$model" "$name" || exit 2
if ! spin -a "$@" "$name" >build.log 2>&1 ||
    ! "${CC:-cc}" $optimize -w $search -DMEMLIM="$MEGABYTES" -o pan pan.c >>build.log 2>&1; then
    cat build.log
    exit 2
fi

./pan $options -m"$DEPTH" >pan.log 2>&1
status=$?
grep -E 'errors: |states, stored|^pan: ?[0-9]*:|Search not completed' pan.log
if grep -q 'errors: [1-9]' pan.log && [ -e "$name.trail" ]; then
    grep -q 'max search depth too small' pan.log && exit 2
    spin -t -p -g "$@" "$name" 2>&1 | head -n 400
    exit 1
fi
[ "$status" -eq 0 ] && grep -q 'errors: 0' pan.log &&
    ! grep -Eq 'Search not completed|max search depth too small|out of memory' pan.log || exit 2
