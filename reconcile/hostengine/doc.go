// Package hostengine puts together the engine of this host: the kernel, the journal, and all
// domains beside the kernel's network. Every command and the agent use it, so that a change is
// recorded and undone in the same way, whoever made it.
package hostengine
