#!/bin/sh
# SPDX-License-Identifier: MIT
# guest-loss.sh prepare | on PERCENT | off | drops
#
# Runs in the virtual machine. "prepare" puts rxe0 on one end of a veth pair whose other end is bridged to eth0, so that netem can
# lose packets in both directions: on the way out it sits on eth0, on the way in on the bridge's end of the pair.
set -e
case $1 in
prepare)
  if [ -e /sys/class/net/rv0 ]; then exit 0; fi
  modprobe -a veth bridge sch_netem
  mtu=$(cat /sys/class/net/eth0/mtu)
  addresses=$(ip -o addr show dev eth0 scope global | awk '{print $4}')
  rdma link delete rxe0
  sysctl -q -w net.ipv6.conf.default.accept_dad=0
  ip link add rbr0 mtu "$mtu" type bridge
  ip link add rv0 mtu "$mtu" type veth peer name rv1 mtu "$mtu"
  ip addr flush dev eth0
  ip link set eth0 master rbr0
  ip link set rv0 master rbr0
  ip link set rbr0 up
  ip link set rv0 up
  ip link set rv1 up
  for a in $addresses; do
    case $a in *:*) ip addr add "$a" dev rv1 nodad ;; *) ip addr add "$a" dev rv1 ;; esac
  done
  rdma link add rxe0 type rxe netdev rv1
  # tell the neighbours the new hardware address
  ping -c 1 -W 5 "$2" >/dev/null
  ping -c 1 -W 5 "$3" >/dev/null
  ;;
on)
  for d in eth0 rv0; do tc qdisc replace dev $d root netem limit 10000 loss "$2%"; done
  ;;
off)
  for d in eth0 rv0; do tc qdisc del dev $d root; done
  ;;
drops)
  for d in eth0 rv0; do tc -s qdisc show dev $d | awk -v d=$d '/Sent/ {sub(",", "", $7); print d, $4, $7}'; done
  ;;
*)
  sed -n 2,5p "$0"
  exit 2
  ;;
esac
