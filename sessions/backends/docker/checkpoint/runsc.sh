#!/bin/sh
# The engine's runtime `runsc`: gVisor's, with five changes. Installed by tests/engine/setup.sh, or by hand as the `path`
# of the runtime in /etc/docker/daemon.json.
#
# 1. From kernel 6 on /proc/sys/net/core/rmem_default exists in every network namespace. gVisor's builds of 2024 take such
#    a namespace for the host's and refuse to start. They see an empty directory instead.
# 2. The start of a container that the gateway has marked becomes a restore. A mark is a link in a directory of root,
#    named by the container's id, to a checkpoint. It is removed here, so that it counts once. A sandbox in which nothing
#    could be restored would go on, and the engine could not end it: it is ended here.
# 3. gVisor does not delete a container that was killed while it was paused, as one is whose memory was written. The
#    engine's shim, which deletes only containers that have ended, would then never end. So a deletion is forced.
# 4. A command of gVisor can hang, most often a restore. The engine would wait for it for ever, and could not remove the
#    container meanwhile. So each command that does not last as long as a process of the container ends at a deadline.
#    Deadline and clean-up together are shorter than the time that the gateway gives a request to the engine (`engine.py`),
#    so that the gateway learns that this start has failed.
# 5. gVisor of 2026 restores only a container whose mounts and limits are described as those in the checkpoint. A trial of
#    a sleeping kernel sees the session's files through an overlay, for which gVisor adds an option to the mount. A new
#    kernel may have lower limits than the one whose checkpoint it begins with. A session may have fallen asleep under
#    other settings. None of them would be restored. So gVisor is told not to compare, if it knows how. The gateway itself
#    has described the container, and its seal shows that the checkpoint is the session's own, and unchanged.
deadline=15 cleanup=3
for container; do :; done
mark=/run/kernel-gateway/restore/$container
root='' before='' restores=false
count=$# position=0
for argument; do
  shift
  position=$((position + 1))
  [ "$before" != --root ] || root=$argument
  before=$argument
  case $((count - position))$argument in
    1start)
      if [ -L "$mark" ]; then
        image=$(readlink "$mark")
        rm "$mark" || exit 1
        restores=true
        set -- "$@" restore -detach -image-path "$image"
      else
        set -- "$@" start
      fi
      ;;
    1delete) set -- "$@" delete --force ;;
    *) set -- "$@" "$argument" ;;
  esac
done
if [ -x /usr/bin/runsc ]; then runsc=/usr/bin/runsc; else runsc=/usr/local/bin/runsc; fi
# The gateway itself asks for these, with a deadline of its own. They start nothing, and need no capability, which a
# gateway may not have.
case " $* " in *" checkpoint "* | *" pause "* | *" resume "* | " --version ") exec "$runsc" "$@" ;; esac
case " $* " in
  *" create "*)
    if [ -L "$mark" ] && "$runsc" flags 2>&1 | grep -q restore-spec-validation; then
      set -- --restore-spec-validation=ignore "$@"
    fi
    ;;
esac
bound="timeout --signal=KILL $deadline"
case " $* " in
  *" exec "*" --detach "*) ;;
  *" exec "* | *" run "* | *" wait "*) bound='' ;;
esac
# shellcheck disable=SC2086  # it has no word or several ones
set -- $bound unshare -m sh -c 'mount -t tmpfs none /proc/sys/net && exec "$@"' sh "$runsc" "$@"
$restores || exec "$@"
"$@" && exit
status=$?
[ "$status" != 137 ] || echo "gVisor did not restore the sandbox within $deadline seconds" >&2
timeout --signal=KILL "$cleanup" "$runsc" --root "$root" delete --force "$container"
exit "$status"
