// Package cluster brings up a real Kubernetes cluster for tests: etcd, API
// server, controller manager and scheduler as processes of this host, on ports
// of its loopback, and every node a virtual machine of the test bench with a
// kubelet, containerd and network cards of its own.
//
// The way in is [Start], which gives a control plane in seconds, needs neither
// root nor a virtual machine, and is enough for controllers and webhooks;
// [Cluster.AddNode] boots nodes into it. It owns one folder below
// .cache/cluster/run with everything that belongs to one cluster, logs
// included. Nothing outlives the process that called Start: an orderly
// [Cluster.Close] removes all of it, and when that process is killed the kernel
// ends the programs and the next Start removes the folder.
//
// The programs are built once from their public Go modules, by modules of their
// own in this folder, so that plumbline's own module never sees them. Everybody
// is authenticated by certificates of the cluster's own authority or by service
// account tokens, and authorized by Node and RBAC: what a manifest forgets to
// ask for is refused here as in production.
//
// It refuses to fake: no part of Kubernetes is replaced. It has no DNS and no
// kube-proxy, so of all services only "kubernetes" is reachable from pods; the
// API server reaches webhook services by their endpoints.
//
// Tests on a cluster have the build tag "cluster" and run by make test-cluster
// alone: without the tag they do not exist, so that neither make unit nor the
// kernel lane, where a skipped test is a failure, has to know them.
package cluster
