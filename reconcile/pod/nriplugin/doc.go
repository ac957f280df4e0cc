// Package nriplugin is the container runtime's side of the node agent: it hears
// of sandboxes and containers over the Node Resource Interface and passes that on
// to reconcile/pod/attachment.
//
// The interface fails open. A hook that answers later than the runtime allows (two
// seconds unless it is configured) is cut off, and the pod goes on without it; so
// it does while nobody is connected. Two rules follow. A hook is answered at three
// quarters of its time; what has not ended by then goes on without it. And what
// really holds a container back is the claim's gate (reconcile/pod/gate), not an answer.
//
// All hooks of a node run one after the other: the time of ours is added to the
// start of every pod. They ask no API server and run no program, and for a pod
// without claims they look at the records and no more.
//
// Run connects, and when the connection is lost connects again with a new stub,
// later each time: a stub that has failed does not dial again. A runtime may stop
// at any point of the conversation: each part of it has a time limit, and a stub
// that does not end with its connection is abandoned. Synchronize tells what
// happened meanwhile. Ready says whether hooks are called at present.
package nriplugin
