// Package cnisocket is the conversation between the CNI plugin, which the container runtime
// starts, and the agent, which does the work: one request and one reply, as JSON over a Unix
// socket. A connection that the client closes cancels its request.
//
// It imports nothing but the types of CNI, so that the plugin stays small: a runtime starts
// it several times for each pod.
package cnisocket
