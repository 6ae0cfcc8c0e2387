#!/usr/bin/env bash
# Walks towards the minimum of (x - 3)^2: a program that knows nothing of trialpod and needs only bash and awk.
#   bash climb.sh --rate=0.1 --start=-5 --steps=20
set -euo pipefail

rate=0.1 start=0 steps=20
for argument in "$@"; do
    case $argument in
        --rate=*) rate=${argument#*=} ;;
        --start=*) start=${argument#*=} ;;
        --steps=*) steps=${argument#*=} ;;
        *) echo "unknown argument $argument" >&2; exit 2 ;;
    esac
done

# In a trial the folder has what the last checkpoint had. Outside of one the walk is not kept.
state=${TRIALPOD_CHECKPOINT_DIR:-$(mktemp -d)}/state
step=0 x=$start
if [ -f "$state" ]; then
    read -r step x <"$state"
fi

while [ "$step" -lt "$steps" ]; do
    step=$((step + 1))
    x=$(awk -v x="$x" -v rate="$rate" 'BEGIN { print x - rate * 2 * (x - 3) }')
    loss=$(awk -v x="$x" 'BEGIN { print (x - 3) ^ 2 }')
    echo "step=$step x=$x loss=$loss"
    echo "$step $x" >"$state.tmp"
    mv "$state.tmp" "$state"
done
