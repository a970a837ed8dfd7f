#!/bin/bash
# SPDX-License-Identifier: MIT
# run.sh [CACHE] [matrix.py's options...]
#
# Softverbs on this machine against Linux Soft-RoCE in a virtual machine: boots the machine, runs matrix.py, ends the machine.
# CACHE keeps the machine's image (default: .cache/rxe-vm in the repository, which git ignores); making it takes two minutes, once.
# Needs root (a network namespace of its own, tap devices), Debian with apt, and the folder rxe-vm with the scripts that build
# and boot the machine, and that install tcpdump and tshark. A capture with something wrong in it is kept in CACHE. Environment:
#   RXE_VM   that folder                                  (default: ../shared/rxe-vm beside the repository)
#   MATRIX   what is run: matrix.py, or cm_matrix.py (the connection manager)
#   PYTHON   an interpreter that can import softverbs     (default: python3); its core should be compiled
# Exit status: 0 all as it should be, 1 a case failed, 2 cannot run here.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(dirname "$here")
RXE_VM=${RXE_VM:-$repo/../shared/rxe-vm}
PYTHON=${PYTHON:-python3}
cannot() { echo "interop: $*" >&2; exit 2; }

case ${1:-} in
-h | --help) sed -n '2,10p' "$0"; exit 0 ;;
-* | "") cache=$repo/.cache/rxe-vm ;;
*) cache=$1; shift ;;
esac
[ "$(id -u)" = 0 ] || cannot "needs root, for a network namespace and tap devices"
[ -x "$RXE_VM/start.sh" ] || cannot "no scripts for the virtual machine in $RXE_VM (variable RXE_VM names their folder)"
RXE_VM=$(cd "$RXE_VM" && pwd)
PYTHON=$(command -v "$PYTHON") || cannot "no interpreter $PYTHON"
ours=$("$PYTHON" -c "import softverbs, softverbs.pyverbs.qp; print(softverbs.__version__ + ',', softverbs.core_build, 'core')") ||
  cannot "$PYTHON cannot import softverbs (variable PYTHON names another interpreter)"

mkdir -p "$cache"
missing=
for tool in qemu-system-x86_64 tcpdump tshark ip; do command -v "$tool" >/dev/null || missing="$missing $tool"; done
if [ ! -e "$cache/root.img" ] || [ -n "$missing" ]; then
  "$RXE_VM/build.sh" "$cache" || cannot "the virtual machine cannot be built"
fi
for tool in $missing; do command -v "$tool" >/dev/null || cannot "needs $tool"; done

RXEVM_RUN=$(mktemp -d /tmp/interop.XXXXXX)
RXEVM_NS=softverbs-interop-$$
export RXEVM_RUN RXEVM_NS
trap '"$RXE_VM/stop.sh"; rm -rf "$RXEVM_RUN"' EXIT
trap 'exit 1' INT TERM
start() { "$RXE_VM/start.sh" "$cache" 1 || { cat "$RXEVM_RUN"/vm1/qemu.log >&2; return 1; }; }
start || { echo "interop: once more" >&2; start; } || cannot "the virtual machine does not start"
cp "$here/peer.py" "$here/cm.py" "$here/guest-loss.sh" "$RXEVM_RUN/share/"

export SOFTVERBS_ADDRESS=10.77.0.1,fd77::1 PYTHONDONTWRITEBYTECODE=1
echo "host: Linux $(uname -r), softverbs $ours, $(tshark --version 2>/dev/null | head -1), $(tcpdump --version 2>&1 | head -1)"
ip netns exec "$RXEVM_NS" "$PYTHON" "$here/${MATRIX:-matrix.py}" --vm "$RXE_VM/run-in-vm -n 1" --table "$cache/interop.tsv" --capture tap1 "$@"
