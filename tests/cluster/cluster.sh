#!/usr/bin/env bash
# A Kubernetes cluster of two nodes on one Debian machine (as root), in network namespaces of its own.
#
#   cluster.sh build     build the programs from their Go modules, into the cache folder; about 15 minutes once
#   cluster.sh up        start the cluster, in about ten seconds; images are imported when they have changed
#   cluster.sh run CMD   run a command beside the control plane, from where Pods can be reached
#   cluster.sh add_image NAME   give both nodes one more image of the engine
#   cluster.sh down      end everything that `up` has started
#
# README.md beside this file gives the reason for each unusual step.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kernel-gateway-cluster}
IMAGE=${CLUSTER_IMAGE:-kernel-gateway/python:slim}
BIN=$CACHE/bin
RUN=$CACHE/run
KEYS=$RUN/keys
LOGS=$RUN/log
RUNSC=${CLUSTER_RUNSC:-/usr/bin/runsc}
readonly HERE CACHE IMAGE BIN RUN KEYS LOGS RUNSC
readonly CONTROL=10.77.0.254 # address of the control plane, and of the tests
readonly NAMESPACE=kernel-gateway

die() {
  printf 'cluster.sh: %s\n' "$*" >&2
  exit 1
}

# Waits until a command succeeds, for up to a minute.
until_ok() {
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.2
  done
  die "this did not succeed within a minute: $*; logs are in $LOGS"
}

# Starts a program in a namespace, and records its pid.
start() {
  local name=$1 namespace=$2
  shift 2
  setsid nsenter --net="/run/netns/$namespace" "$@" >"$LOGS/$name.log" 2>&1 </dev/null &
  echo $! >"$RUN/$name.pid"
}

api() { # METHOD PATH [BODY]: one request as administrator
  nsenter --net=/run/netns/kgc-control curl --silent --show-error --fail --max-time 10 --cacert "$KEYS/ca.crt" \
    --cert "$KEYS/admin.crt" --key "$KEYS/admin.key" -H 'Content-Type: application/json' \
    -X "$1" "https://$CONTROL:6443$2" ${3:+--data "$3"}
}

# --- programs ------------------------------------------------------------------------------------------

build() {
  command -v go >/dev/null || die 'no Go; 1.26 or newer is needed'
  mkdir -p "$BIN"
  local folder name stamp made_of
  for folder in "$HERE"/programs/*/; do
    name=$(basename "$folder")
    stamp=$CACHE/$name.built
    made_of=$(cat "$folder"/* && linker_flags "$folder")
    if [[ -e $stamp && $(<"$stamp") == "$made_of" ]]; then continue; fi
    echo "==> building $name"
    (
      cd "$folder"
      target=tool
      if [[ -e main.go ]]; then target=.; fi
      CGO_ENABLED=0 go build -trimpath -ldflags "$(linker_flags .)" -o "$BIN/" "$target"
    )
    printf '%s\n' "$made_of" >"$stamp"
  done
}

linker_flags() { # FOLDER
  local version
  version=$(sed -n 's#^require k8s.io/kubernetes \(v.*\)#\1#p' "$1/go.mod")
  # Without its version, Helm and others do not know what the cluster can do.
  echo "-s -w${version:+ -X k8s.io/component-base/version.gitVersion=$version}"
}

# --- the control plane ---------------------------------------------------------------------------------

make_keys() {
  mkdir -p "$KEYS"
  local new=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
  openssl req -x509 "${new[@]}" -keyout "$KEYS/ca.key" -out "$KEYS/ca.crt" -subj /CN=ca -days 30 2>/dev/null
  certificate apiserver /CN=kube-apiserver "IP:$CONTROL,IP:10.96.0.1,DNS:kubernetes"
  certificate admin /O=system:masters/CN=admin
  certificate kubelets /O=system:masters/CN=apiserver
  certificate manager /CN=system:kube-controller-manager
  certificate scheduler /CN=system:kube-scheduler
  certificate node1 /O=system:nodes/CN=system:node:node1 IP:10.77.0.1
  certificate node2 /O=system:nodes/CN=system:node:node2 IP:10.77.0.2
  openssl genrsa -out "$KEYS/accounts.key" 2048 2>/dev/null
  openssl rsa -in "$KEYS/accounts.key" -pubout -out "$KEYS/accounts.pub" 2>/dev/null
}

certificate() { # NAME SUBJECT [ADDRESSES]
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$KEYS/$1.key" -out "$KEYS/$1.csr" -subj "$2" 2>/dev/null
  printf '%s\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature\nbasicConstraints=CA:FALSE\nauthorityKeyIdentifier=keyid\n' "${3:+subjectAltName=$3}" >"$KEYS/$1.ext"
  openssl x509 -req -in "$KEYS/$1.csr" -CA "$KEYS/ca.crt" -CAkey "$KEYS/ca.key" -CAcreateserial -days 30 \
    -out "$KEYS/$1.crt" -extfile "$KEYS/$1.ext" 2>/dev/null
  cat >"$KEYS/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: tests, cluster: {server: "https://$CONTROL:6443", certificate-authority: $KEYS/ca.crt}}]
users: [{name: $1, user: {client-certificate: $KEYS/$1.crt, client-key: $KEYS/$1.key}}]
contexts: [{name: tests, context: {cluster: tests, user: $1, namespace: $NAMESPACE}}]
current-context: tests
END
}

make_networks() {
  ip netns add kgc-control
  ip -n kgc-control link set lo up
  ip -n kgc-control link add bridge type bridge
  ip -n kgc-control addr add "$CONTROL/24" dev bridge
  ip -n kgc-control link set bridge up
  local n
  for n in 1 2; do
    ip netns add "kgc-node$n"
    ip -n "kgc-node$n" link set lo up
    ip -n kgc-control link add "node$n" type veth peer name eth0 netns "kgc-node$n"
    ip -n kgc-control link set "node$n" master bridge up
    ip -n "kgc-node$n" addr add "10.77.0.$n/24" dev eth0
    ip -n "kgc-node$n" link set eth0 up
    ip -n "kgc-node$n" route add default via "$CONTROL"
    ip -n "kgc-node$n" route add "10.88.$((3 - n)).0/24" via "10.77.0.$((3 - n))"
    ip -n kgc-control route add "10.88.$n.0/24" via "10.77.0.$n"
  done
}

start_control() {
  start etcd kgc-control "$BIN/etcd" --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380
  start_api
  start manager kgc-control "$BIN/kube-controller-manager" --kubeconfig="$KEYS/manager.kubeconfig" \
    --use-service-account-credentials --service-account-private-key-file="$KEYS/accounts.key" \
    --root-ca-file="$KEYS/ca.crt" --leader-elect=false --bind-address=127.0.0.1 \
    --node-monitor-grace-period=16s --node-monitor-period=2s
  start scheduler kgc-control "$BIN/kube-scheduler" --kubeconfig="$KEYS/scheduler.kubeconfig" --leader-elect=false \
    --bind-address=127.0.0.1
  until_ok api GET /readyz
}

start_api() {
  start apiserver kgc-control "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --bind-address="$CONTROL" --advertise-address="$CONTROL" --service-cluster-ip-range=10.96.0.0/16 \
    --tls-cert-file="$KEYS/apiserver.crt" --tls-private-key-file="$KEYS/apiserver.key" \
    --client-ca-file="$KEYS/ca.crt" --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$KEYS/accounts.pub" --service-account-signing-key-file="$KEYS/accounts.key" \
    --kubelet-client-certificate="$KEYS/kubelets.crt" --kubelet-client-key="$KEYS/kubelets.key" \
    --kubelet-preferred-address-types=InternalIP --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --cert-dir="$RUN/apiserver"
}

# --- a node --------------------------------------------------------------------------------------------

start_node() {
  setsid nsenter --net="/run/netns/kgc-node$1" unshare --mount --uts --propagation private \
    "$HERE/cluster.sh" inside_node "$1" >"$LOGS/node$1.log" 2>&1 </dev/null &
  echo $! >"$RUN/node$1.pid"
}

# Runs in the node's own namespaces, and stays there.
inside_node() {
  local n=$1 home=$RUN/node$1
  hostname "node$n"
  mount --make-rshared /
  mkdir -p "$home"/{etc,cni,kept,hidden}
  hide_the_machine "$home"
  local group file
  for group in /sys/fs/cgroup/*/; do
    [[ $group == */unified/ ]] || mkdir -p "$group/kgc-node$n"
  done
  for file in cpus mems; do
    cat "/sys/fs/cgroup/cpuset/cpuset.$file" >"/sys/fs/cgroup/cpuset/kgc-node$n/cpuset.$file"
  done
  echo 1 >/proc/sys/net/ipv4/ip_forward
  write_node "$n" "$home"
  PATH=$BIN:$PATH "$BIN/containerd" -c "$home/etc/containerd.toml" >"$LOGS/containerd$n.log" 2>&1 </dev/null &
  echo $! >"$RUN/containerd$n.pid"
  until_ok test -S "$home/containerd.sock"
  import "$n" "$home"
  PATH=$BIN:$PATH "$BIN/kubelet" --config="$home/etc/kubelet.yaml" --kubeconfig="$KEYS/node$n.kubeconfig" \
    --root-dir=/var/lib/kubelet --hostname-override="node$n" --node-ip="10.77.0.$n" --cert-dir="$home/etc" \
    >"$LOGS/kubelet$n.log" 2>&1 </dev/null &
  echo $! >"$RUN/kubelet$n.pid"
  exec sleep infinity
}

# What Kubernetes and containerd would share with the machine through fixed paths is the node's own. The kubelet sets
# kernel settings of the whole machine unless they read as it wants them, so it reads files with its wishes.
hide_the_machine() {
  local home=$1 path setting
  for path in /run/netns /run/containerd /run/nri /var/lib/cni /var/lib/kubelet /var/log/pods /var/log/containers; do
    mkdir -p "$path" "$home/kept$path"
    mount --bind "$home/kept$path" "$path"
    mount --make-rshared "$path"
  done
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1; do
    path=$home/hidden/${setting//\//-}
    echo "${setting#*=}" >"$path"
    mount --bind "$path" "/proc/sys/${setting%=*}"
  done
}

write_node() {
  local n=$1 home=$2
  cat >"$home/etc/runsc-plain" <<END
#!/bin/sh
# With an empty /proc/sys/net, gVisor of 2024 does not take a Pod's network namespace for the host's.
exec unshare --mount sh -c 'mount -t tmpfs none /proc/sys/net && exec "\$@"' sh $RUNSC --platform=systrap --network=sandbox "\$@"
END
  sed "s#@RUNSC@#$home/etc/runsc-plain#" "$HERE/runsc-for-pods.sh" >"$home/etc/runsc"
  chmod +x "$home/etc/runsc" "$home/etc/runsc-plain"
  cat >"$home/cni/pods.conflist" <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local",
  "ranges": [[{"subnet": "10.88.$n.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$home/addresses"}}]}
END
  cat >"$home/etc/containerd.toml" <<END
version = 4
root = "$CACHE/node$n"
state = "$home/containerd"
[plugins."io.containerd.server.v1.grpc"]
  address = "$home/containerd.sock"
[plugins."io.containerd.server.v1.ttrpc"]
  address = "$home/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "$home/opt"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "docker.io/local/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$BIN"]
    conf_dir = "$home/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gvisor]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gvisor.options]
      BinaryName = "$home/etc/runsc"
END
  cat >"$home/etc/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.77.0.$n
containerRuntimeEndpoint: unix://$home/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $KEYS/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $KEYS/node$n.crt
tlsPrivateKeyFile: $KEYS/node$n.key
cgroupDriver: cgroupfs
cgroupRoot: /kgc-node$n
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
healthzBindAddress: 127.0.0.1
nodeStatusUpdateFrequency: 4s
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%, imagefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
resolvConf: ""
END
}

# --- images --------------------------------------------------------------------------------------------

# Writes the tars that both nodes import: a pause image of one program, and the kernels' image of the engine.
save_images() {
  local id
  id=$(docker image inspect --format '{{.Id}}' "$IMAGE") || die "the engine has no image $IMAGE"
  if [[ -e $CACHE/images.id && $(<"$CACHE/images.id") == "$id" ]]; then return; fi
  echo "==> saving $IMAGE"
  rm -f "$CACHE/images.id"
  docker save --output "$CACHE/kernel.tar" "$IMAGE"
  mkdir -p "$CACHE/pause"
  cp "$BIN/pause" "$CACHE/pause/pause"
  printf 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n' >"$CACHE/pause/Dockerfile"
  DOCKER_BUILDKIT=0 docker build --quiet --tag local/pause:1 "$CACHE/pause" >/dev/null
  docker save --output "$CACHE/pause.tar" local/pause:1
  echo "$id" >"$CACHE/images.id"
}

import() { # NODE HOME: unless the node's containerd has these images from the last time
  if [[ -e $CACHE/node$1.id && $(<"$CACHE/node$1.id") == "$(<"$CACHE/images.id")" ]]; then return; fi
  local tar
  for tar in pause kernel; do
    "$BIN/ctr" -a "$2/containerd.sock" -n k8s.io images import "$CACHE/$tar.tar"
  done
  cp "$CACHE/images.id" "$CACHE/node$1.id"
}

add_image() { # NAME: one more image of the engine for both nodes
  local n
  docker save --output "$RUN/added.tar" "$1"
  for n in 1 2; do "$BIN/ctr" -a "$RUN/node$n/containerd.sock" -n k8s.io images import "$RUN/added.tar"; done
  rm "$RUN/added.tar"
}

# --- policies ------------------------------------------------------------------------------------------

start_policies() { # NODE: the program that enforces network policies
  local n=$1 pid
  pid=$(<"$RUN/node$n.pid")
  # Some kernels lack the nftables expression `queue`, which the program's own rules need. The same rules by xtables:
  rule() { nsenter --net="/run/netns/kgc-node$n" iptables --wait --table mangle "$@"; }
  if ! rule --list KGC >/dev/null 2>&1; then
    rule --new KGC
    rule --append KGC --match owner --uid-owner 0 --jump RETURN # the node's own programs, such as the kubelet
    rule --append KGC --match conntrack --ctstate ESTABLISHED,RELATED --jump RETURN
    rule --append KGC --source 10.88.0.0/16 --jump NFQUEUE --queue-num 100
    rule --append KGC --destination 10.88.0.0/16 --jump NFQUEUE --queue-num 100
    rule --append POSTROUTING --jump KGC
    rule --new KGC-NODE # from a Pod to its own node
    rule --append KGC-NODE --match conntrack --ctstate ESTABLISHED,RELATED --jump RETURN
    rule --append KGC-NODE --source 10.88.0.0/16 --jump NFQUEUE --queue-num 100
    rule --append INPUT --jump KGC-NODE
  fi
  # The program accepts only the credentials of a Pod.
  KUBERNETES_SERVICE_HOST=$CONTROL KUBERNETES_SERVICE_PORT=6443 setsid nsenter --target "$pid" --mount --net --uts \
    unshare --mount sh -c "mkdir -p /run/secrets/kubernetes.io/serviceaccount && \
      mount --bind $RUN/account /run/secrets/kubernetes.io/serviceaccount && exec $BIN/cmd --hostname-override=node$n \
      --nfqueue-id=100 --netfilter-bug-1766-fix=false --metrics-bind-address=127.0.0.1:9080" \
    >"$LOGS/policies$n.log" 2>&1 </dev/null &
  echo $! >"$RUN/policies$n.pid"
}

make_objects() {
  api POST /apis/node.k8s.io/v1/runtimeclasses \
    '{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "gvisor"}'
  api POST /apis/node.k8s.io/v1/runtimeclasses \
    '{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "plain"}, "handler": "runc"}'
  api POST /apis/scheduling.k8s.io/v1/priorityclasses \
    '{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000}'
  api POST /api/v1/namespaces "{\"metadata\": {\"name\": \"$NAMESPACE\", \"labels\": {\"pod-security.kubernetes.io/enforce\": \"restricted\"}}}"
  until_ok api GET "/api/v1/namespaces/$NAMESPACE/serviceaccounts/default"
  local rbac=/apis/rbac.authorization.k8s.io/v1
  api POST /api/v1/namespaces/kube-system/serviceaccounts '{"metadata": {"name": "policies"}}'
  api POST $rbac/clusterroles '{"metadata": {"name": "policies"}, "rules": [
    {"apiGroups": [""], "resources": ["pods", "namespaces", "nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]}]}'
  api POST $rbac/clusterrolebindings '{"metadata": {"name": "policies"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "policies"},
    "subjects": [{"kind": "ServiceAccount", "name": "policies", "namespace": "kube-system"}]}'
  mkdir -p "$RUN/account"
  cp "$KEYS/ca.crt" "$RUN/account/ca.crt"
  api POST /api/v1/namespaces/kube-system/serviceaccounts/policies/token '{"spec": {"expirationSeconds": 86400}}' |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["status"]["token"], end="")' >"$RUN/account/token"
}

# --- all -----------------------------------------------------------------------------------------------

nodes_are_ready() {
  [[ $(api GET /api/v1/nodes | python3 -c 'import json, sys
print(sum(c["type"] == "Ready" and c["status"] == "True" for n in json.load(sys.stdin)["items"] for c in n["status"].get("conditions", [])))') == 2 ]]
}

up() {
  [[ $(id -u) == 0 ]] || die 'this needs root'
  [[ -x $BIN/kubelet ]] || die "no programs in $BIN: run cluster.sh build"
  if [[ -e $RUN ]]; then die 'the cluster is up already, or was not ended: run cluster.sh down'; fi
  mkdir -p "$LOGS"
  save_images
  make_keys
  make_networks
  start_control
  start_node 1
  start_node 2
  make_objects >"$LOGS/objects.log"
  for _ in $(seq 5); do # an import of images may take minutes
    if (until_ok nodes_are_ready) 2>/dev/null; then break; fi
  done
  nodes_are_ready || die "the nodes are not ready; logs are in $LOGS"
  start_policies 1
  start_policies 2
  echo "==> the cluster is up after $SECONDS s; KUBECONFIG=$KEYS/admin.kubeconfig"
}

run() { exec nsenter --net=/run/netns/kgc-control "$@"; }

# Ends what belongs to the cluster, by its recorded process ids and by the paths of its own folder.
down() {
  local pod name pid
  for pod in $(api GET "/api/v1/pods" 2>/dev/null | python3 -c 'import json, sys
for pod in json.load(sys.stdin)["items"]: print(pod["metadata"]["namespace"] + "/pods/" + pod["metadata"]["name"])' 2>/dev/null); do
    api DELETE "/api/v1/namespaces/$pod" '{"gracePeriodSeconds": 1}' >/dev/null 2>&1 || true
  done
  for _ in $(seq 50); do
    if ! api GET /api/v1/pods 2>/dev/null | grep --quiet '"uid"'; then break; fi
    sleep 0.2
  done
  local pids=()
  for name in policies1 policies2 kubelet1 kubelet2 containerd1 containerd2 node1 node2 scheduler manager apiserver etcd; do
    if [[ -e $RUN/$name.pid ]]; then pids+=("$(<"$RUN/$name.pid")"); fi
  done
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for _ in $(seq 15); do
    if ! kill -0 "${pids[@]}" 2>/dev/null; then break; fi
    sleep 0.1
  done
  # etcd and the API server take long to end on their own; shims and sandboxes of a killed node do not end at all.
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    if [[ $pid != "$$" ]] && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep --quiet --fixed-strings -e "$RUN/" -e "$BIN/"; then
      kill -9 "$pid" 2>/dev/null || true
    fi
  done
  sleep 0.5
  for name in kgc-node1 kgc-node2 kgc-control; do ip netns del "$name" 2>/dev/null || true; done
  for name in /sys/fs/cgroup/*/kgc-node[12]; do
    if [[ -d $name ]]; then find "$name" -depth -type d -exec rmdir {} \; 2>/dev/null || true; fi
  done
  rm -rf "$RUN"
}

case ${1:-} in
build | up | down | run | add_image | inside_node | start_policies | start_api) "$@" ;;
*) die 'usage: cluster.sh build | up | run COMMAND | down' ;;
esac
