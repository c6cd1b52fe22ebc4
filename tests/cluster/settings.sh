# Places and versions that every script of this folder uses. Source this file.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/voile-kubernetes
BIN=$CACHE/bin       # programs: hyper (Kubernetes and etcd), kubectl, coredns
IMAGES=$CACHE/images # OCI archives that every node imports
STATE=$CACHE/state/${VOILE_CLUSTER:-default} # of the cluster that `up` starts

KUBERNETES=1.36.3
COREDNS=1.14.7
GATEWAY_API=1.6.3 # of the conformance suite
ISTIO=v0.0.0-20260827124520-eed52ebb66ad # commit of Istio: tests beside it, and the echo server that the suite's mesh cases call

# Networks of a cluster with nodes. Each cluster has them in a network namespace of its own.
LAN=10.89.0       # the control plane is .1, node N is .(10+N)
PODS=10.244       # pods of node N: .N.0/24
SERVICES=10.96    # services: .0.0/16; DNS: .0.10
BALANCED=10.97    # services with a load balancer, in conformance runs
