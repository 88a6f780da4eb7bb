#!/usr/bin/env bash
# The demo job on a Kubernetes of two workers on this machine: `make kind-demo`.
#
#   k8s/kind/demo.sh [--target job|pytorchjob|jobset|trainjob] [--keep]   run it
#   k8s/kind/demo.sh --down                                              remove what it has made
#
# Uses your own docker, kind and kubectl. The cluster is kept if something fails, for a look.
# Variables: ORCHESTRATE (the command), RUNS (the folder of run folders), OPERATOR_URL (the
# operator's manifests, for another release or a copy of your own).
set -euo pipefail

readonly CLUSTER=orchestrate CONTEXT=kind-orchestrate NAMESPACE=training
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
runs=${RUNS:-$root/runs/kind}
orchestrate=${ORCHESTRATE:-$root/.venv/bin/orchestrate}
target=job keep=no down=no

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "$0"
}

refuse() {
  echo "kind-demo: $1" >&2
  exit 2
}

read_arguments() {
  while (($#)); do
    case $1 in
      --target) target=${2:-}; shift; [[ $target ]] || refuse '--target needs a name' ;;
      --keep) keep=yes ;;
      --down) down=yes ;;
      -h | --help) usage; exit 0 ;;
      *) refuse "unknown argument $1 (see --help)" ;;
    esac
    shift
  done
  case $target in
    job | pytorchjob | jobset | trainjob) ;;
    *) refuse "--target $target: one of job, pytorchjob, jobset, trainjob" ;;
  esac
}

# Says everything that is missing at once.
check_tools() {
  local missing=0
  need() {
    command -v "$1" >/dev/null || { echo "kind-demo: $1 is missing: $2" >&2; missing=1; }
  }
  need docker https://docs.docker.com/engine/install/
  need kind https://kind.sigs.k8s.io/docs/user/quick-start/#installation
  need kubectl https://kubernetes.io/docs/tasks/tools/
  [[ -x $orchestrate ]] || { echo "kind-demo: $orchestrate is missing: make setup" >&2; missing=1; }
  ((missing == 0)) || exit 2
  docker info >/dev/null 2>&1 || refuse 'docker does not answer: is its daemon running, and may you use it?'
}

remove() {
  kind delete cluster --name "$CLUSTER"
  echo "The runs stay in $runs"
}

make_cluster() {
  # Writable for the pods' user (1000), whoever you are.
  mkdir -p "$runs" && chmod 1777 "$runs"
  if kind get clusters 2>/dev/null | grep -qx "$CLUSTER"; then
    echo "kind-demo: using the cluster that is there"
  else
    local config
    config=$(<"$here/cluster.yaml")
    kind create cluster --name "$CLUSTER" --wait 180s --config - <<<"${config//RUNS/"$runs"}"
  fi
}

load_image() {
  local version image
  version=$("$orchestrate" --version)
  image=orchestrate-trainer:${version##* }
  docker build --file "$root/k8s/image/Dockerfile" --target cpu --tag "$image" "$root"
  kind load docker-image "$image" --name "$CLUSTER"
}

kube() {
  kubectl --context "$CONTEXT" "$@"
}

# Operator and where it says that it is ready; releases as the project was written against.
install_operator() {
  case $target in
    job) return ;;
    pytorchjob)
      operator_from "-k" 'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4'
      await_operator kubeflow training-operator ;;
    jobset)
      operator_from "-f" https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml
      await_operator jobset-system jobset-controller-manager ;;
    trainjob)
      operator_from "-k" 'github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0'
      await_operator kubeflow-system kubeflow-trainer-controller-manager ;;
  esac
}

operator_from() {
  # Server-side: these CRDs are too large for the annotation of a client-side apply.
  kube apply --server-side "$1" "${OPERATOR_URL:-$2}"
}

await_operator() {
  kube --namespace "$1" rollout status "deployment/$2" --timeout 300s
}

set_up_namespace() {
  kube apply --filename "$root/k8s/namespace.yaml" --filename "$here/storage.yaml"
  if [[ $target == pytorchjob ]]; then # its operator's init container has no security context
    kube label --overwrite namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=baseline
  fi
}

main() {
  read_arguments "$@"
  check_tools
  if [[ $down == yes ]]; then
    remove
    return
  fi
  make_cluster
  load_image
  install_operator
  set_up_namespace
  "$orchestrate" submit "$root/examples/demo.yaml" --clusters "$here/clusters.yaml" \
    --cluster "kind-$target" --watch
  [[ $keep == yes ]] || remove
}

main "$@"
