#!/bin/sh
# train.sh RATE [WEIGHTS]: darknet, as it is, on the images beside this script; it takes its learning rate from a file.
set -eu
here=$(dirname "$0")
sed "s/RATE/$1/" "$here/net.cfg" >"$TRIALPOD_TRIAL_DIR/net.cfg"
for number in $(seq 500); do ls "$here"/*.png; done >"$TRIALPOD_TRIAL_DIR/train.list"
cat >"$TRIALPOD_TRIAL_DIR/train.data" <<DATA
classes=2
train=$TRIALPOD_TRIAL_DIR/train.list
valid=$TRIALPOD_TRIAL_DIR/train.list
labels=$here/labels.txt
backup=$TRIALPOD_CHECKPOINT_DIR
DATA
shift
exec darknet classifier train "$TRIALPOD_TRIAL_DIR/train.data" "$TRIALPOD_TRIAL_DIR/net.cfg" "$@"
