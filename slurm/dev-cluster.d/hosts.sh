# shellcheck shell=bash
# Hosts of a cluster: their processes, namespaces, cables and daemons. Sourced by dev-cluster.
# shellcheck disable=SC2153 # DIR, ACCOUNTING and the others are set there

# Try a command until it succeeds, for at most so many seconds.
wait_for() { # SECONDS CMD...
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || return 1
    sleep 0.05
  done
}

# --- processes --------------------------------------------------------------------------------------------------------

# The start time of a living process, in clock ticks since boot (field 22 of proc(5) stat). Fails for a zombie: an
# orphan may stay one for seconds where pid 1 is slow.
start_time() { # PID
  local stat fields
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  read -ra fields <<<"${stat##*) }" # after the command's name, which may hold spaces
  [[ ${fields[0]} != [ZX] ]] && echo "${fields[19]}"
}

# A pid is kept with its start time, so that a number that another process got later is never taken for ours.
record() { echo "$2 $(start_time "$2")" >"$DIR/run/$1.pid"; } # NAME PID

pid_of() { # NAME: prints the pid if that process is alive
  local pid started
  { read -r pid started <"$DIR/run/$1.pid"; } 2>/dev/null || return 1
  [[ $(start_time "$pid") == "$started" ]] && echo "$pid"
}

is_up() { pid_of "$1" >/dev/null; }
is_off() { ! is_up "$1"; }

# Every recorded process leads a group of its own, so the group is ended: for a holder, that is `unshare` and the pid 1
# that it made, and with pid 1 go all processes of that host, daemons and jobs alike.
end_process() { # NAME
  local pid
  if pid=$(pid_of "$1"); then
    kill -KILL -- "-$pid" 2>/dev/null || kill -KILL "$pid" # in its first moment it leads no group yet
    wait_for 10 is_off "$1" || die "$1 (process $pid) does not end"
  fi
  rm -f "$DIR/run/$1.pid"
}

hosts() { # names of all hosts that were started, the head last
  local file
  for file in "$DIR"/run/node*.pid "$DIR"/run/head.pid; do
    [[ ! -e $file ]] || basename "$file" .pid
  done
}

# --- hosts ------------------------------------------------------------------------------------------------------------

inside() { # HOST CMD...: run a command in all namespaces of a host
  local pid
  pid=$(pid_of "$1") || die "$1 is not up in $DIR"
  shift
  # The holder itself stays in this machine's pid namespace; the host's is the one that it made for its children.
  nsenter --target "$pid" --net --uts --mount --pid="/proc/$pid/ns/pid_for_children" --wd="$PWD" "$@"
}

# A command in the head's network only. It still sees this machine's pids, by which `ip link set netns` finds a host.
in_head_network() {
  local pid
  pid=$(pid_of head) || die "head is not up in $DIR"
  nsenter --target "$pid" --net "$@"
}

hold() { # HOST: start its holder
  rm -f "$DIR/run/$1.ready"
  [[ -z $FREEZER ]] || mkdir -p "$FREEZER/$1"
  setsid unshare --net --uts --mount --pid --fork --mount-proc --kill-child=KILL \
    bash "$HERE/dev-cluster.d/host-init" "$1" "$DIR" "$FREEZER" "$DEBIAN" </dev/null >"$DIR/log/$1.init.log" 2>&1 &
  record "$1" $!
  disown # its end is no news for this shell to print
  wait_for 10 test -e "$DIR/run/$1.ready" || die "no namespaces for $1; see $DIR/log/$1.init.log"
}

give_addresses() { # HOST INTERFACE IPV4 IPV6 LAST
  [[ $3 == - ]] || inside "$1" ip addr add "$3.$5/24" dev "$2"
  inside "$1" ip -6 addr add "$4$5/64" dev "$2" nodad || true # a kernel without IPv6
  inside "$1" ip link set "$2" up
}

boot_head() {
  local network ipv4 ipv6
  hold head
  while read -r network _ _ ipv4 ipv6; do
    inside head ip link add "$network" type bridge
    give_addresses head "$network" "$ipv4" "$ipv6" 1
  done <"$DIR/networks"
  inside head munged --force --socket="$DIR/run/munge.sock" --key-file="$DIR/munge.key" \
    --pid-file="$DIR/run/munge.own" --log-file="$DIR/log/munge.log" --seed-file="$DIR/run/munge.seed" \
    2>"$DIR/log/munge-start.log" # it says that it does without its own IPv4 address where there is none
  [[ -z $ACCOUNTING ]] || start_database
  inside head "$(tool slurmctld)" -f "$SLURM_CONF"
}

boot_node() { # NODE: its holder, a cable to each of the head's bridges, its addresses, slurmd
  local node=$1 network interface hardware ipv4 ipv6
  hold "$node"
  while read -r network interface hardware ipv4 ipv6; do
    plug "$node" "$network" "$interface" "$hardware"
    give_addresses "$node" "$interface" "$ipv4" "$ipv6" "$((10 + ${node#node}))"
  done <"$DIR/networks"
  mkdir -p "$DIR/spool/$node"
  inside "$node" "$(tool slurmd)" -f "$SLURM_CONF" -d "$(tool slurmstepd)"
}

plug() { # NODE NETWORK INTERFACE HARDWARE
  local i=${1#node}
  in_head_network ip link del "$2$i" 2>/dev/null || true # left for a moment after a power failure
  # The same hardware address after a power failure: the others remember it for a while.
  in_head_network ip link add "$2$i" type veth \
    peer name "$3" address "$4:$(printf '%02x' "$i")" netns "$(pid_of "$1")"
  in_head_network ip link set "$2$i" master "$2" up
}

# MariaDB without passwords, in the head's own network: nobody else reaches its 127.0.0.1:3306. It is killed with the
# head: flush-log=2 hands each commit to the kernel at once, so that no job is missing after the next start.
start_database() {
  local options=(--no-defaults --user=root --datadir="$DIR/db" --innodb-log-file-size=8M --innodb-buffer-pool-size=64M)
  [[ -d $DIR/db/mysql ]] || mariadb-install-db "${options[@]}" --auth-root-authentication-method=normal \
    --skip-test-db >"$DIR/log/install-db.log" 2>&1
  inside head setsid mariadbd "${options[@]}" --bind-address=127.0.0.1 --socket="$DIR/run/db.sock" \
    --pid-file="$DIR/run/mariadb.own" --skip-grant-tables --skip-log-bin --innodb-flush-log-at-trx-commit=2 \
    --innodb-lock-wait-timeout=900 </dev/null >"$DIR/log/mariadb.log" 2>&1 &
  wait_for 60 inside head mariadb --no-defaults --socket="$DIR/run/db.sock" -e 'select 1' ||
    die "MariaDB does not answer; see $DIR/log/mariadb.log"
  # Debian 13's client library wants TLS, and tries again without only after 5 s.
  MARIADB_TLS_DISABLE_PEER_VERIFICATION=1 inside head "$(tool slurmdbd)"
  wait_for 30 inside head "$(tool sacctmgr)" -n list cluster ||
    die "slurmdbd does not answer; see $DIR/log/slurmdbd.log"
}
