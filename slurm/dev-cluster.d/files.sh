# shellcheck shell=bash
# The configuration files of one cluster, all in $DIR. Sourced by dev-cluster.
# shellcheck disable=SC2153 # DIR, NODES, GPUS and the others are set there

write_files() {
  write_networks >"$DIR/networks"
  write_names
  write_gpus
  write_slurm_conf >"$SLURM_CONF"
  write_cgroup_conf >"$DIR/cgroup.conf"
  (umask 077 && write_slurmdbd_conf >"$DIR/slurmdbd.conf") # slurmdbd refuses any other mode
  [[ -e $DIR/munge.key ]] || (umask 077 && head -c 128 /dev/urandom >"$DIR/munge.key")
  write_clients
}

# A line for each network: its name, the nodes' interface, the beginnings of hardware, IPv4 and IPv6 addresses.
write_networks() {
  local ipv4=$NETWORK fast=$FAST
  [[ ! $IPV6_ONLY ]] || ipv4=- fast=-
  echo "net eth0 02:00:00:00:00 $ipv4 $NETWORK6"
  [[ ! $WITH_FAST ]] || echo "fast fast0 02:00:00:00:01 $fast $FAST6"
}

# How the daemons find one another: by numbers, since with names each would wait for name servers that are not there.
address() { # LAST: prints the address of the head (1) or of nodes (11..., or [11-14])
  if [[ $IPV6_ONLY ]]; then echo "$NETWORK6$1"; else echo "$NETWORK.$1"; fi
}

write_names() {
  {
    printf '127.0.0.1 localhost\n::1 localhost\n'
    [[ $NAMES == none ]] || write_hosts
  } >"$DIR/hosts"
  # No name server: one that cannot be reached costs 10 s for each look-up, and torch looks up each peer's name.
  echo "options timeout:1 attempts:1" >"$DIR/resolv.conf"
}

write_hosts() { # HOST, HOST-ip6 and with --fast HOST-fast
  local i host
  for ((i = 0; i <= NODES; i++)); do
    if ((i == 0)); then host='1 head'; else host="$((10 + i)) node$i"; fi
    write_host "$NETWORK" "$NETWORK6" "${host% *}" "${host#* }"
    echo "$NETWORK6${host% *} ${host#* }-ip6"
    [[ ! $WITH_FAST ]] || write_host "$FAST" "$FAST6" "${host% *}" "${host#* }-fast"
  done
}

write_host() { # IPV4 IPV6 LAST NAME
  [[ $NAMES == ipv6 ]] || echo "$1.$3 $4"
  [[ $NAMES == ipv4 ]] || echo "$2$3 $4"
}

# Fake GPUs: character devices, clones of /dev/null. Slurm counts none without File=, and sets no
# CUDA_VISIBLE_DEVICES for plain files. The number at the end of the name becomes the index there.
write_gpus() {
  local i
  : >"$DIR/gres.conf"
  ((GPUS > 0)) || return 0
  for ((i = 0; i < GPUS; i++)); do
    [[ -e $DIR/dev/nvidia$i ]] || mknod "$DIR/dev/nvidia$i" c 1 3
  done
  echo "Name=gpu ${GPU_TYPE:+Type=$GPU_TYPE }File=$DIR/dev/nvidia[0-$((GPUS - 1))]" >"$DIR/gres.conf"
}

write_slurm_conf() {
  cat <<CONF
ClusterName=dev
SlurmctldHost=head($(address 1))
$([[ ! $IPV6_ONLY ]] || echo CommunicationParameters=EnableIPv6,DisableIPv4)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.sock
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$DIR/run/slurmctld.own
SlurmdPidFile=$DIR/run/slurmd-%n.own
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd-%n.log
$([[ -z $DEBIAN ]] || echo "PluginDir=$(plugin_dir)")
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/$([[ $FREEZER ]] && echo cgroup || echo linuxproc)
TaskPlugin=task/none
# Nodes may declare more CPUs and memory than this machine has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without a default, one job would take all of a node's memory.
DefMemPerCPU=256
GresTypes=gpu

# Quick reactions, for tests: a lost node is down after about SlurmdTimeout; SIGKILL comes KillWait after SIGTERM.
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=5
OverTimeLimit=0
MessageTimeout=5
TCPTimeout=2
InactiveLimit=0
ReturnToService=2
MinJobAge=3600
SchedulerParameters=bf_interval=2,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
$(write_accounting)
JobCompType=jobcomp/filetxt
JobCompLoc=$DIR/log/jobcomp.txt

# Jobs in the partition "urgent" preempt those in "main", which are requeued.
JobRequeue=1
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node[1-$NODES] NodeAddr=$(address "[11-$((10 + NODES))]") $(node_size) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 DefaultTime=10 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF DefaultTime=10 MaxTime=INFINITE State=UP
${DEV_CLUSTER_CONF:-}
CONF
}

node_size() {
  local gpus=
  ((GPUS == 0)) || gpus=" Gres=gpu:${GPU_TYPE:+$GPU_TYPE:}$GPUS"
  echo "CPUs=${DEV_CLUSTER_CPUS:-8} RealMemory=${DEV_CLUSTER_MEMORY_MIB:-32000}$gpus"
}

# AccountingStorageTRES=gres/gpu without slurmdbd ends slurmctld, so all of it is there only with --acct.
write_accounting() {
  [[ $ACCOUNTING ]] || return 0
  cat <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$(address 1)
AccountingStoragePass=$DIR/run/munge.sock
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_script,job_comment
CONF
}

# slurmd starts this plugin even where nothing uses it; v1's asks nothing of the machine until then.
write_cgroup_conf() {
  printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n'
}

write_slurmdbd_conf() {
  cat <<CONF
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.sock
DbdHost=head
DbdAddr=$(address 1)
$([[ ! $IPV6_ONLY ]] || echo CommunicationParameters=EnableIPv6,DisableIPv4)
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=root
LogFile=$DIR/log/slurmdbd.log
PidFile=$DIR/run/slurmdbd.own
$([[ -z $DEBIAN ]] || echo "PluginDir=$(plugin_dir)")
CONF
}

# bin/: for whoever stands outside; each enters the head's network and hostname, and keeps all else.
# clients/: the programs themselves, which take the place of bin/ inside the hosts.
write_clients() {
  local client
  for client in "${CLIENTS[@]}"; do
    ln -sfn "$(tool "$client")" "$DIR/clients/$client"
    cat >"$DIR/bin/$client" <<CONF
#!/bin/sh
export SLURM_CONF=$SLURM_CONF
read -r pid started 2>/dev/null <$DIR/run/head.pid || { echo "$client: no cluster is up in $DIR" >&2; exit 1; }
exec nsenter --target "\$pid" --net --uts $(tool "$client") "\$@"
CONF
    chmod +x "$DIR/bin/$client"
  done
}
