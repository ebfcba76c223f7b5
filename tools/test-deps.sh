#!/bin/sh
# Installs the Debian packages that more suites want. Run as root: `sudo make test-deps`.
# Without them the suites that need them are skipped, each with its reason.
set -eu
if [ "$(id -u)" != 0 ]; then
    echo "test-deps installs Debian packages and needs root: run 'sudo make test-deps'" >&2
    exit 1
fi
command -v apt-get >/dev/null || { echo "test-deps knows apt only; install kubectl, iproute2 and golang by hand" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# iproute2: network namespaces in tests; procps: ps in the orphan tests; wrk: load for bench
apt-get install -y -q --no-install-recommends iproute2 procps wrk openssl curl
# openmpi-bin, openssh-*: examples/mpi.yaml runs for real
apt-get install -y -q --no-install-recommends openmpi-bin openssh-server openssh-client
# redis-server: state that routers share; haproxy: a yardstick of bench/
apt-get install -y -q --no-install-recommends redis-server haproxy || echo "no redis-server: suites with shared state will be skipped"
# prometheus: asks what the dashboards and the alerts ask; it is not to run here
apt-get install -y -q --no-install-recommends prometheus && { systemctl disable --now prometheus prometheus-node-exporter 2>/dev/null || true; } || echo "no prometheus: its suite will be skipped"
# crun, runc, runsc: the runtimes oci and gvisor; qemu-system-x86: microvm, whose guest image is made of Debian packages
apt-get install -y -q --no-install-recommends crun runc qemu-system-x86 || echo "no crun, runc or QEMU: suites of sandboxes in containers and machines will be skipped"
apt-get install -y -q --no-install-recommends runsc || echo "no runsc: its suite will be skipped"
python3 "$(dirname "$0")/../images/microvm/build.py" || echo "no guest image: the suite of virtual machines will be skipped"
command -v kubectl >/dev/null || apt-get install -y -q --no-install-recommends kubernetes-client || echo "no kubectl: its suite will be skipped"
