// Package rollout applies edits of NetworkTopologies with the update policy InPlace to the
// pods of this node. The controller (topology/controller) decides which nodes update when,
// and lists them in the topology's status. A Follower watches the topologies that this node
// has claims of, and while the node is listed it updates one claim after the other;
// attachment.Keeper applies each update or rolls it back. The result is reported in the
// claim's status (reconcile/pod/claimstatus), from which the controller derives the
// progress of the rollout. After a failure a claim is not updated until the next
// generation, unless the cause is the pod or the node: then the update is retried. See
// docs/adr/0015. Follow decides whether a claim can get a later generation with the devices
// it has. Otherwise the claim is held back, which is no failure: it needs a new pod. None
// of this is part of a hook or of the preparation of a claim. While the API server is
// unreachable nothing is updated; there is no other effect.
package rollout
