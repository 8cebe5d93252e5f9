# Prepares the mount namespace of one node and holds it until killed. Run by the supervisor:
#   unshare --mount sh node.sh DIR ROOTLESS
# It prints `ready` once everything is mounted.
# DIR is the node's folder on the cluster's tmpfs. The kubelet hard-codes /var/lib/kubelet.
set -eu
dir=$1 rootless=$2
mkdir -p "$dir/kubelet" "$dir/log" "$dir/lib" "$dir/lib.work" "$dir/runtime" "$dir/certs"
if [ ! -d /var/lib/kubelet ]; then
    options="lowerdir=/var/lib,upperdir=$dir/lib,workdir=$dir/lib.work"
    if [ "$rootless" = 1 ]; then options="$options,userxattr"; fi
    mount -t overlay -o "$options" overlay /var/lib
    mkdir /var/lib/kubelet
fi
mount --bind "$dir/kubelet" /var/lib/kubelet
mount --bind "$dir/log" /var/log
if [ "$rootless" = 0 ]; then
    # A kubelet writes machine-wide settings; it finds files that have the values it wants.
    for setting in "$dir"/../sysctl/*; do
        mount --bind "$setting" "/proc/sys/$(basename "$setting" | tr . /)"
    done
fi
echo ready
exec sleep infinity >/dev/null
