#!/bin/sh
# A build of Voile that is worse by a known amount, to see whether the lab tells: INJECTED_HOPS more hops behind the server's sidecar
# (bare relays, some 16 to 20 us each at the median; one, where nothing else is asked), and a process in each sidecar's group that uses CPU: what
# INJECTED_RATE requests a second cost a load generator (36 are about 1.5 us for each of the experiment's thousand, 5 % of a sidecar's 30; 140, where
# nothing else is asked, some 19 %). VOILE is the real program:
#
#   VOILE=$PWD/target/release/voile target/release/voile bench run benchmarks/aa.toml --contestant injected=benchmarks/injected.sh
#
# What the load generator that serves as burner costs per request: METHODOLOGY.md, "Generators".
set -eu
: "${VOILE:?the voile program}"
case "$1" in
control)
  mesh="$3/mesh.yaml"
  real=$(sed -n 's/.*defaultEndpoint: //p' "$mesh" | head -n 1)
  new=$real
  for hop in $(seq "${INJECTED_HOPS:-1}"); do
    log="$3/../relay-$hop.log"
    "$VOILE" relay --listen 127.0.0.1:0 --to "$new" --workers 1 2>"$log" &
    until grep -q 'listening on' "$log"; do :; done
    new=$(sed -n 's/.*listening on [^0-9]*\([0-9.]*:[0-9]*\).*/\1/p' "$log" | head -n 1)
  done
  sed -i "s/defaultEndpoint: $real/defaultEndpoint: $new/" "$mesh"
  ;;
proxy)
  # Its own server, so that the experiment's is left alone; both are of the sidecar's group and charged to it.
  log=$(mktemp)
  "$VOILE" echo --listen 127.0.0.1:0 2>"$log" &
  until grep -q 'listening on' "$log"; do :; done
  at=$(sed -n 's/.*listening on [^0-9]*\([0-9.]*:[0-9]*\).*/\1/p' "$log" | head -n 1)
  rm "$log"
  "$VOILE" load "http://$at/" --rate "${INJECTED_RATE:-140}" --connections 1 --duration 24h --json >/dev/null 2>&1 &
  ;;
esac
exec "$VOILE" "$@"
