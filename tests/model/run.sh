# Every state of the models of the protocol is seen, and none of them is wrong; and in a model with one
# of its planted mistakes (MISTAKE_...) a wrong state is found. A search that is not complete fails.
# From `make check-model`, which sets CC and JOBS.
. tests/tap.sh

command -v spin >/dev/null || tap_skip_all "spin is not installed (Debian: spin)"
command -v "${CC:-cc}" >/dev/null || tap_skip_all "there is no C compiler: ${CC:-cc}"

# Model, what is special, and options of explore.sh. The constants of the models are the smallest in which each of
# their mistakes shows; these are as large as can be searched in seconds. The longest come first.
table()
{
    cat <<'END'
cancel|two sends and two receives|-O1 -DCALLS=0 -DRECEIVES=2 -DROOM=1
access|a read and a write, in any order|-O1 -DACCESSES=2 -DNOTES=0 -DRENEWALS=0 -DSLICES=1 -DPARTS=1 -DALL_HAVE_NOTES=1
matching|three messages of one tag and one of another|-O1 -DCREDIT=2
access|two reads, lists of two messages|-DACCESSES=2 -DNOTES=0 -DRENEWALS=0 -DSLICES=1 -DALL_HAVE_NOTES=1 -DKINDS=1
cancel|numbers that are used again|-O1 -DCALLS=0 -DRECEIVES=3 -DNUMBERS=2 -DOUTSTANDING=1 -DSOCKETS=1
access|no bytes, and more notes|-O1 -DNOTES=2 -DEMPTY=1
cancel|calls that take time|
access|one of each kind|
close|two messages|
END
    # Of these all runs have an end.
    cat <<'END'
matching|every run ends|-l -DFIRST=2
cancel|every run ends|-l -DCALLS=0
close|every run ends|-l
access|every run ends|-l -DNOTES=0 -DRENEWALS=0
END
    for model in matching cancel close access; do
        grep -o 'MISTAKE_[A-Z_]*' "tests/model/$model.pml" | sort -u |
            sed "s/.*/$model|&|-D&/"
    done
}

# JOBS of them at a time; their status and output are kept.
table >"$TAP_WORK/table"
number=0
while IFS='|' read -r model title options; do
    number=$((number + 1))
    printf '%s %s %s\n' "$number" "$model" "$options"
done <"$TAP_WORK/table" |
    TAP_WORK=$TAP_WORK xargs -P "${JOBS:-2}" -I '{}' sh -c '
        set -- {}
        at=$TAP_WORK/$1 model=$2
        shift 2
        sh tests/model/explore.sh "$at" "tests/model/$model.pml" "$@" >"$at.output" 2>&1
        echo $? >"$at.status"
        rm -rf "$at"'

result()
{
    cat "$TAP_WORK/$1.output"
    return "$(cat "$TAP_WORK/$1.status")"
}

number=0
while IFS='|' read -r model title options; do
    number=$((number + 1))
    case $title in
    MISTAKE_*)
        mistake=$(printf '%s' "${title#MISTAKE_}" | tr 'A-Z_' 'a-z ')
        check_status "$model, mistake found: $mistake" 1 result "$number"
        ;;
    *)
        check_status "$model, all states: $title" 0 result "$number"
        printf '# %s\n' "$(grep -o '[0-9.e+]* states, stored' "$TAP_OUTPUT")"
        ;;
    esac
done <"$TAP_WORK/table"

for model in matching cancel close access; do
    check_output "$model has at least three mistakes" '^([3-9]|[1-9][0-9])$' \
        grep -c "^$model|MISTAKE_" "$TAP_WORK/table"
done
tap_end
