// Package nriplugin is the container runtime's side of the node agent: it receives events
// of sandboxes and containers over the Node Resource Interface and passes them on to
// reconcile/pod/attachment.
//
// The interface fails open. A hook that answers later than the runtime allows (two seconds
// unless it is configured) is ignored, and the pod is started without it, as while no agent
// is connected. Two rules follow. A hook is answered after three quarters of its time; its
// work then continues in the background. And not the answer, but the claim's gate
// (reconcile/pod/gate) prevents the start of a container.
//
// All hooks of a node run one after the other: the time of ours is added to the start of
// every pod. They query no API server and run no program, and for a pod without claims they
// only read the records. Run connects, and when the connection is lost connects again with
// a new stub, with backoff: a stub that has failed does not dial again. A runtime may stop
// at any point of the conversation: each part of it has a time limit, and a stub that does
// not end with its connection is abandoned. Synchronize reports what happened meanwhile.
//
// A runtime that gives up Synchronize may keep the connection and call no hook, and does not
// say so (containerd 1.7). So a plugin also connects again when its answer was late, and when
// no hook has come while a prepared claim waits for one. The first hook of a connection
// proves that it is in use.
//
// Ready reports whether hooks are called at present.
package nriplugin
