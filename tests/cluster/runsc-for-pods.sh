#!/bin/sh
# Lets containerd's shim for runc drive gVisor for Pods, where containerd-shim-runsc-v1 is not at hand. For a container
# that runs in the sandbox of its Pod it
#  * keeps the input and output of `create` for `start`, where runsc takes them;
#  * gives the shim the pid of a process that ends with the container's status.
runsc=@RUNSC@
command='' log='' root='' bundle='' pid_file='' before='' last=''
for word; do
  case $before in
  --log) log=$word ;;
  --root) root=$word ;;
  --bundle) bundle=$word ;;
  --pid-file) pid_file=$word ;;
  esac
  case $word in
  create | start | exec | delete | kill | state | ps | update | pause | resume | events | list)
    [ -n "$command" ] || command=$word
    ;;
  esac
  before=$word last=$word
done
folder=${log%/log.json}

case $command in
create)
  if grep -q '"io.kubernetes.cri.container-type":"container"' "$bundle/config.json"; then
    "$runsc" "$@" || exit $?
    exec 3<&0 # a shell's background process would read from /dev/null
    # shellcheck disable=SC2016 # the inner shell expands them
    sh -c 'trap "" TERM INT
      while [ ! -e "$1/started" ]; do
        [ -e "$1/config.json" ] || exit 137
        sleep 0.05
      done
      status=$("$0" --root "$2" wait "$3" 2>/dev/null | sed -n "s/.*\"exitStatus\": *\([0-9]*\).*/\1/p")
      exit "${status:-137}"' "$runsc" "$folder" "$root" "$last" <&3 3<&- &
    echo $! >"$folder/waiter"
    printf %d $! >"$pid_file"
    exit 0
  fi
  ;;
start)
  if [ -f "$folder/waiter" ]; then
    waiter=$(cat "$folder/waiter")
    "$runsc" "$@" <"/proc/$waiter/fd/0" >"/proc/$waiter/fd/1" 2>"/proc/$waiter/fd/2"
    status=$?
    : >"$folder/started"
    exit $status
  fi
  ;;
kill)
  said=$("$runsc" "$@" 2>&1)
  status=$?
  case $status:$said in # the shim knows runc's words for a container that has ended
  0:*) ;;
  *"not running"* | *"not exist"* | *"no such process"*) echo 'container not running' >&2 ;;
  *) echo "$said" >&2 ;;
  esac
  exit $status
  ;;
esac
exec "$runsc" "$@"
